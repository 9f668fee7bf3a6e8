"""Reading a config.json: every field is used, known to be irrelevant, or a one-line error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.models.config import IGNORED_FIELDS, Config
from llmviewer.models.load import parse

LLAMA: dict[str, Any] = data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"]


def config(**fields: Any) -> Config:
    return Config(fields, "mine")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key != name}


def test_an_unknown_field_is_an_error_that_names_the_field_and_the_option() -> None:
    with pytest.raises(UserError, match=r"mine: field 'number_of_magic_heads' is not supported.*ignore_fields number"):
        parse({**LLAMA, "number_of_magic_heads": 3}, "mine")


@pytest.mark.parametrize(("model_type", "ignored"), [("jetmoe", "n_head"), ("lfm2", "num_heads")])
def test_an_older_name_that_a_class_does_not_read_changes_nothing(model_type: str, ignored: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
    fields = {"model_type": model_type, **sizes, "intermediate_size": 96, "vocab_size": 100}
    assert repr(parse({**fields, ignored: 7}, "mine")) == repr(parse(fields, "mine"))


def test_an_ignored_field_is_accepted() -> None:
    model = parse({**LLAMA, "number_of_magic_heads": 3}, "mine", ignored=("number_of_magic_heads",))
    assert model.parameters == 6738415616


def test_a_field_to_ignore_that_is_not_there_is_an_error() -> None:
    fields = {**LLAMA, "number_of_magic_heads": 3}
    with pytest.raises(UserError, match=r"mine: unknown field of ignore_fields 'zzz'.*the config has no such field"):
        parse(fields, "mine", ignored=("number_of_magic_heads", "zzz"))
    with pytest.raises(UserError, match="did you mean 'number_of_magic_heads'"):
        parse(fields, "mine", ignored=("number_of_magic_head",))


def test_fields_of_a_nested_config_are_checked_too() -> None:
    whole = config(text_config={"hidden_size": 8, "magic": 1})
    assert whole.section("text_config").count("hidden_size") == 8
    assert whole.unread_fields() == ["magic"]


def test_irrelevant_fields_have_a_reason_and_change_nothing() -> None:
    assert all(IGNORED_FIELDS.values())
    assert parse({**LLAMA, "transformers_version": "5.0", "eos_token_id": [1, 2]}, "mine").parameters == 6738415616


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"mine: missing field '{name}'"):
        parse(without(name), "mine")


def test_without_a_model_type_the_class_says_the_architecture() -> None:
    fields = without("model_type")
    model = parse({**fields, "architectures": ["LlamaForCausalLM"]}, "mine")
    assert model.parameters == 6738415616
    assert "the config has no model_type; its class says llama" in model.notes
    with pytest.raises(UserError, match="mine: missing field 'model_type'"):
        parse({**fields, "architectures": ["NewForCausalLM"]}, "mine")


def test_another_missing_size_is_that_of_the_class_and_said() -> None:
    """LlamaConfig has 11,008 elements in its MLP, as Llama-2-7b states."""
    model = parse(without("intermediate_size"), "mine")
    assert model.parameters == 6738415616
    assert any(
        "the config leaves sizes to its class in transformers: intermediate_size 11008" in n for n in model.notes
    )


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "4096", [4096], {}, float("nan"), float("inf"), 10**9, 10**400])
def test_a_size_is_a_positive_integer(value: object) -> None:
    with pytest.raises(UserError, match=r"mine: field 'hidden_size' is .*expected"):
        parse({**LLAMA, "hidden_size": value}, "mine")


@given(st.one_of(st.none(), st.booleans(), st.text(), st.floats(), st.integers(), st.lists(st.integers())))
def test_any_field_value_is_a_count_or_a_one_line_error(value: object) -> None:
    try:
        assert config(size=value).count("size") >= 1
    except UserError as error:
        assert "\n" not in str(error)


@given(st.one_of(st.none(), st.booleans(), st.text(), st.floats(), st.integers(), st.lists(st.integers())))
def test_any_config_is_a_model_or_a_one_line_error(value: object) -> None:
    for name in ("num_key_value_heads", "head_dim", "hidden_act", "tie_word_embeddings", "torch_dtype", "model_type"):
        try:
            parse({**LLAMA, name: value}, "mine")
        except UserError as error:
            assert "\n" not in str(error)


def one_config_per_model_type() -> dict[str, dict[str, Any]]:
    configs = (data.read_yaml(data.folder("model_configs") / f"{name}.yaml")["config"] for name in models.names())
    return {config["model_type"]: config for config in configs}


CONFIGS = one_config_per_model_type()
HOSTILE = (0, -1, 2.5, True, "x", [], [{}], {"a": 1}, float("nan"), float("inf"), 10**400)


def variants(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The config with one field, also of a nested config, replaced or removed."""
    for name, value in fields.items():
        yield {key: kept for key, kept in fields.items() if key != name}
        yield from ({**fields, name: hostile} for hostile in HOSTILE)
        if isinstance(value, dict):
            yield from ({**fields, name: part} for part in variants(value))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_broken_field_is_a_one_line_error_or_a_model(model_type: str) -> None:
    for fields in variants(CONFIGS[model_type]):
        try:
            parse(fields, "mine")
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_hundred_million_layers_are_rejected_before_they_are_built(model_type: str) -> None:
    fields = dict(CONFIGS[model_type])
    if "text_config" in fields:
        fields["text_config"] = dict(fields["text_config"])
    part = fields.get("text_config", fields)
    names = ("encoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
    name = next(name for name in names if name in part)
    part[name] = 10**8
    with pytest.raises(UserError, match=r"field '\w+' is 100000000, expected 1 to 10000|disagree"):
        parse(fields, "mine")


def test_an_integral_float_is_a_count() -> None:
    assert config(size=4096.0).count("size") == 4096


@pytest.mark.parametrize(
    "field",
    [
        {"sound_tower": None},
        {"eoa_token_index": 7},
        {"context_window_size": 4096, "prefill_chunk_size": 2048, "tensor_parallel_shards": 1},
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28},
        {"layer_types": ["full_attention"] * 32},
        {"gate_init_std": 0.006, "vision_end_token_id": 5, "branch_dropout": 0.1, "swa_rope_theta": 1e4},
    ],
)
def test_fields_that_tools_add_change_nothing(field: dict[str, Any]) -> None:
    """Nulls, token ids, run-time settings and switched-off parts, by name or by the ending of the name."""
    assert parse({**LLAMA, **field}, "mine").parameters == 6738415616


@pytest.mark.parametrize(
    "field", [{"use_sliding_window": True, "sliding_window": 4096}, {"layer_types": ["full_attention", "linear"]}]
)
def test_parts_that_are_switched_on_are_not_excused(field: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="not supported for this architecture"):
        parse({**LLAMA, **field}, "mine")


def test_a_null_field_counts_as_missing() -> None:
    assert config(size=None).count("size", 7) == 7
    with pytest.raises(UserError, match="missing field 'size'"):
        config(size=None).count("size")


def test_booleans_strings_and_numbers_are_type_checked() -> None:
    with pytest.raises(UserError, match="expected true or false"):
        config(bias="yes").flag("bias", default=False)
    with pytest.raises(UserError, match="expected a string"):
        config(act=3).text("act")
    with pytest.raises(UserError, match="expected a number"):
        config(factor="half").number("factor", 1.0)


def test_a_field_supported_at_one_value_is_rejected_at_others() -> None:
    config(scale="linear").expect("scale", "linear")
    with pytest.raises(UserError, match="field 'scale' is 'cubic'; supported: linear"):
        config(scale="cubic").expect("scale", "linear")


def test_an_unknown_model_type_is_an_error_not_a_llama() -> None:
    with pytest.raises(UserError, match=r"mine: unknown model_type 'lama'; .*did you mean 'llama'"):
        parse({**LLAMA, "model_type": "lama"}, "mine")


@pytest.mark.parametrize(
    ("stated", "requested", "dtype"),
    [
        ("bfloat16", "auto", "bf16"),
        ("float16", "auto", "fp16"),
        ("float32", "auto", "fp16"),
        (None, "auto", "fp16"),
        ("float16", "bf16", "bf16"),
        ("float16", "fp32", "fp32"),
    ],
)
def test_the_dtype_is_the_checkpoints_by_default(stated: str | None, requested: str, dtype: str) -> None:
    """A missing dtype and float32 become 16 bit with a note, as in vLLM."""
    model = parse({**LLAMA, "torch_dtype": stated}, "mine", dtype=requested)
    assert model.dtype.name == dtype
    assert bool(model.notes) == (requested == "auto" and stated in (None, "float32"))


def test_a_folder_or_a_config_json_loads(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    for path in (folder, folder / "config.json"):
        model = models.load(str(path))
        assert (model.name, model.parameters) == ("my-llama", 6738415616)


def test_the_family_does_not_depend_on_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "opt" / "llama-2-7b-experiments"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="is a directory"):
        models.load(str(folder))
