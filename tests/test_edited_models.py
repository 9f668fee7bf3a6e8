"""--model-set: fields of a config.json with other values, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.models import card, edited


def test_half_the_kv_heads_halve_the_cache_and_leave_out_their_weights() -> None:
    whole, half = (models.load("llama-3.1-8b", changed=changed) for changed in ("none", "num_key_value_heads=4"))
    # 32 layers of two products 4096 -> 4 heads of 128 are left out
    assert whole.parameters - half.parameters == 32 * 2 * 4096 * 4 * 128
    cache = [
        lv.analyze("llama-3.1-8b", "h100", input_len=1000, output_len=24, model_set=text).to_dict()["memory"]
        for text in ("none", "num_key_value_heads=4")
    ]
    assert (
        cache[0]["kv_cache_bytes"] == 2 * cache[1]["kv_cache_bytes"] == 1023 * 2 * 32 * 8 * 128 * 2
    )  # the last token is not cached


@given(layers=st.integers(1, 60), heads=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_changed_fields_are_those_of_a_config_that_states_them(layers: int, heads: int) -> None:
    changed = f"num_hidden_layers={layers},num_key_value_heads={heads}"
    own = card.read("llama-3.1-8b").config
    stated = models.from_fields({**own, "num_hidden_layers": layers, "num_key_value_heads": heads})
    found = models.load("llama-3.1-8b", changed=changed)
    assert (found.parameters, len(found.layers)) == (stated.parameters, len(stated.layers))
    assert found.name == f"llama-3.1-8b[{changed}]"
    assert f"num_hidden_layers 32 -> {layers}" in found.notes[0]


def test_fields_of_a_section_are_changed_where_they_stand() -> None:
    plain, inner = (models.load("gemma-3-12b", changed=f"{at}sliding_window=512") for at in ("", "text_config."))
    assert plain.notes[0].split(" by model_set: ")[1] == "sliding_window 1024 -> 512"
    windows = [{getattr(one.mixer, "window", None) for one in model.layers} for model in (plain, inner)]
    assert windows[0] == windows[1] != {getattr(one.mixer, "window", None) for one in models.load("gemma-3-12b").layers}


@pytest.mark.parametrize(
    ("text", "found"),
    [("a=1,b=2", {"a": 1, "b": 2}), ("a=[1,2],b.c=silu", {"a": [1, 2], "b.c": "silu"}), ("a = true", {"a": True})],
)
def test_values_are_json_or_words(text: str, found: dict[str, Any]) -> None:
    assert edited.changes(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_key_value_heads", "expected fields of config.json"),
        ("=4", "expected fields of config.json"),
        ("vocab_size=", "expected fields of config.json"),
        ("vocab_size=1,vocab_size=2", "has vocab_size twice"),
        ("quantization_config=1", "number formats are those of"),
        ("num_kv_heads=4", "no count depends on field 'num_kv_heads'"),
        ("rope_theta=1", "no count depends on field 'rope_theta'"),
        ("text_config.vocab_size=1", "the config has no section 'text_config'"),
        ("num_key_value_heads=5", "not divisible by 5 num_key_value_heads"),
        ("hidden_size=wide", "field 'hidden_size' is 'wide', expected a whole number"),
    ],
)
def test_what_changes_nothing_or_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze("llama-3.1-8b", "h100", model_set=text)


def test_a_model_that_is_read_already_is_not_changed() -> None:
    with pytest.raises(UserError, match="by its name; this one is read already"):
        lv.analyze(models.load("llama-3.1-8b"), "h100", model_set="num_hidden_layers=8")


def test_a_published_size_is_not_that_of_a_changed_model() -> None:
    own = card.read("llama-3.1-8b")
    assert own.published
    assert not edited.with_changes(replace(own), {"num_hidden_layers": 8}).published
