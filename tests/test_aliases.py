"""Hub ids of aliases.yaml have the fields of their own config.json, or say that they were never compared."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.models.aliases import Alias, entries
from llmviewer.models.card import read
from tests import alias_configs

CASES = Path(__file__).resolve().parent.parent.parent / "shared" / "cases" / "alias_context.csv"
HUB_IDS = [alias for alias in entries().values() if alias.is_hub_id]
OWN = [alias for alias in HUB_IDS if alias.fields]


def is_own(alias: Alias) -> bool:
    return f"huggingface.co/{alias.repository}/".lower() in read(alias.stem).source.lower()


@pytest.mark.parametrize("alias", HUB_IDS, ids=lambda alias: alias.name)
def test_every_hub_id_is_its_own_checkpoint_or_says_that_it_was_never_compared(alias: Alias) -> None:
    card = read(alias.name)
    loaded = models.build(card)
    if is_own(alias):
        assert (card.compared, loaded.uncompared, card.name) == ("", "", alias.stem)
    elif alias.source:
        assert alias.source.startswith("https://") and alias.source in card.compared and not loaded.uncompared
        assert card.name == (alias.name if alias.fields else alias.stem)
    else:
        assert card.compared.startswith("never compared") and loaded.uncompared == alias.name
        assert not alias.fields


@pytest.mark.parametrize("alias", OWN, ids=lambda alias: alias.name)
def test_the_fields_of_an_id_replace_those_of_its_model(alias: Alias) -> None:
    """They differ from the model's, and no other field changes."""
    plain, own = read(alias.stem).config, read(alias.name).config
    flat = [{**c, **c.get("text_config", {})} for c in (plain, own)]
    assert all(flat[1][name] == value for name, value in alias.fields.items())
    assert all(flat[0].get(name) != value for name, value in alias.fields.items())
    assert {k: v for k, v in flat[0].items() if k not in (*alias.fields, "text_config")} == {
        k: v for k, v in flat[1].items() if k not in (*alias.fields, "text_config")
    }
    if "max_position_embeddings" in alias.fields:
        assert models.load(alias.name).max_context == alias.fields["max_position_embeddings"]


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("Qwen/Qwen3-4B-Instruct-2507", 262144),
        ("Qwen/Qwen3-4B", 40960),
        ("Qwen/Qwen3-30B-A3B-Base", 32768),
        ("Qwen/QwQ-32B", 40960),
        ("Qwen/Qwen2.5-32B", 131072),
        ("Qwen/Qwen2-72B-Instruct", 32768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 131072),
        ("zai-org/GLM-4.6", 202752),
        ("THUDM/glm-4-9b-hf", 8192),
        ("allenai/Olmo-3-7B-Think", 65536),
        ("meta-llama/Llama-4-Scout-17B-16E", 262144),
        # by rule, from the id without its suffixes
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262144),
        ("unsloth/Qwen3-4B-Instruct-2507-bnb-4bit", 262144),
        ("unsloth/Qwen2.5-7B", 131072),
        ("unsloth/Qwen2.5-7B-Instruct", 32768),
    ],
)
def test_longest_contexts(name: str, context: int) -> None:
    assert models.load(name).max_context == context


@pytest.mark.skipif(not CASES.exists(), reason="no shared/cases beside the repository")
def test_longest_contexts_of_cards() -> None:
    rows = list(csv.DictReader(CASES.open(encoding="utf-8")))
    assert [models.load(row["id"]).max_context for row in rows] == [float(row["own_context"]) for row in rows]


def test_an_id_that_was_never_compared_says_so_where_its_context_matters(capsys: pytest.CaptureFixture[str]) -> None:
    never = next(alias for alias in HUB_IDS if alias.stem == "qwen3-vl-2b" and not is_own(alias) and not alias.source)
    note = f"{never.name} was never compared with its own config.json: its longest context of 262144 tokens is that of"
    assert not any(note in warning for warning in lv.analyze(never.name, "h100").warnings)
    assert any(note in warning for warning in lv.analyze(never.name, "h100", engine="vllm").warnings)
    assert any(note in warning for warning in lv.analyze(never.name, "h100", input_len=300_000).warnings)
    assert not any("compared" in warning for warning in lv.analyze("qwen3-vl-2b", "h100", engine="vllm").warnings)
    assert main(["models", "show", never.name]) == 0
    assert "never compared with that of" in capsys.readouterr().out


def cases(folder: Path, hub_id: str, **fields: Any) -> None:
    target = folder / hub_id
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps({**read(hub_id).config, **fields}))


def test_the_script_finds_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases(tmp_path, "Qwen/Qwen3-4B-Instruct-2507")
    cases(tmp_path, "Qwen/Qwen3-8B-Base", max_position_embeddings=4096)
    assert alias_configs.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "Qwen/Qwen3-8B-Base: {'max_context_len': (32768, 4096)}" in printed
    assert "Qwen/Qwen3-4B-Instruct-2507: {" not in printed and "2 compared here" in printed


def test_sources_are_no_model() -> None:
    assert "sources" not in data.aliases("model_configs")
