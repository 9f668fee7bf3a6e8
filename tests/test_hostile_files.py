"""Any config or spec gives finite numbers, or a one-line error that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import models
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.models.load import parse

pytestmark = pytest.mark.filterwarnings("error")  # numpy's as well


def one_line(error: UserError) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 600


def config_of(name: str) -> dict[str, Any]:
    """The config of a model."""
    fields: dict[str, Any] = data.read_yaml(data.folder("model_configs") / f"{name}.yaml")["config"]
    return fields


LLAMA, MODEL = config_of("llama-2-7b"), models.load("llama-2-7b")
H100 = data.read_yaml(data.folder("hardware_specs") / "h100-sxm.yaml")
H100.pop("sources", None)

HOSTILE: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 64, 10**8, 10**9, 10**30, 10**400, 2.5, -0.0, 1e308, float("nan"), float("inf"), "", "x",
    "4096",
    "auto", "\n\x1b[31m", True, False, None, [], [0], [1], [None], [[1]], ["x"], [{}], {}, {"a": 1}, [0] * 5000,
    "x" * 9999,
)  # fmt: skip
QUANTIZED: tuple[dict[str, Any], ...] = (
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": [["self_attn.q_proj"]]},
    {"quant_method": "awq", "bits": 4, "zero_point": True, "modules_to_not_convert": ["lm_head"]},
    {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "re:.*gate$"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
        },
    },
)


def paths(fields: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all fields of a config, nested ones included."""
    for name, value in fields.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from paths(value, (*above, name))


def with_change(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The fields with one replaced, or removed if `value` is Ellipsis."""
    first, *rest = path
    if rest:
        inner = fields.get(first)
        return {**fields, first: with_change(inner, tuple(rest), value)} if isinstance(inner, dict) else fields
    kept = {name: old for name, old in fields.items() if name != first}
    return kept if value is ... else {**kept, first: value}


@st.composite
def broken_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config, possibly quantized, with one to three fields missing, hostile or slightly changed."""
    fields = config_of(draw(st.sampled_from(models.names())))
    if draw(st.integers(0, 3)) == 0:
        fields = {**fields, "quantization_config": draw(st.sampled_from(QUANTIZED))}
    for path in draw(st.lists(st.sampled_from(sorted(paths(fields))), min_size=1, max_size=3)):
        before: Any = fields
        for name in path:
            before = before.get(name) if isinstance(before, dict) else None
        near = st.sampled_from(list(neighbours(before)))
        fields = with_change(fields, path, draw(st.sampled_from(HOSTILE) | st.just(...) | near))
    return fields


def neighbours(value: Any) -> Iterator[Any]:
    """Similar values of the same type."""
    yield value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        yield from (value + 1, value * 2, -value, value * 10**5, value * 1.5, str(value))
    if isinstance(value, list) and value:
        yield from (value[:-1], value[::-1], value * 2, [None] * len(value), [True] * len(value), [-1] * len(value))
        yield [[entry] for entry in value]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(broken_configs(), st.sampled_from(["flash", "eager"]))
def test_any_config_gives_a_finite_result_or_a_one_line_error(fields: dict[str, Any], attention: str) -> None:
    try:
        model = parse(fields, "mine")
        found = lv.analyze(model, "h100", batch_size=2, input_len=5, output_len=3, attention=attention)
        answer = found.to_dict()
    except UserError as error:
        one_line(error)
        return
    json.dumps(answer, allow_nan=False)
    assert answer["model"]["parameters"] > 0
    for stage in answer["stages"].values():
        assert stage["time_s"] > 0
        for row in stage["operators"]:
            assert min(row[name] for name in ("flops", "matmul_flops", "traffic_bytes", "time_s")) >= 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama-3.1-8b", {"num_attention_heads": 0}, "field 'num_attention_heads' is 0, expected 1 to"),
        ("llama-3.1-8b", {"num_attention_heads": 33, "head_dim": ...}, "are not divisible by 33 heads"),
        ("llama-3.1-8b", {"num_key_value_heads": 64}, "field 'num_key_value_heads' is 64, expected 1 to 32"),
        ("llama-3.1-8b", {"num_key_value_heads": 5}, "32 heads are not divisible by 5 num_key_value_heads"),
        ("llama-3.1-8b", {"num_hidden_layers": "32"}, "field 'num_hidden_layers' is '32', expected a whole number"),
        ("llama-3.1-8b", {"partial_rotary_factor": -1}, "field 'partial_rotary_factor' is -1.0, expected 0 to 1"),
        ("falcon-40b", {"num_kv_heads": 9}, "are not divisible by 9 num_kv_heads"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 1000}, "field 'num_experts_per_tok' is 1000, expected 1 to 128"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "field 'layer_types' must list 24 layers"),
        ("gpt-oss-20b", {"layer_types": ["ful_attention"] * 24}, "did you mean 'full_attention'?"),
        ("gpt-oss-20b", {"layer_types": [["full_attention"]] * 24}, "unknown entry of layer_types a list"),
        ("llama-3.1-8b", {"model_type": "granitemoe_swa", "layer_rope_theta": [1]}, "must list 32 layers"),
        ("laguna-xs.2", {"num_attention_heads_per_layer": [True] * 40}, "expected a list of whole numbers"),
        ("mamba-codestral-7b", {"n_groups": 7}, "128 heads are not divisible by 7 n_groups"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_field(name: str, changes: dict[str, Any], message: str) -> None:
    fields = config_of(name)
    for field, value in changes.items():
        fields = with_change(fields, (field,), value)
    with pytest.raises(UserError) as error:
        parse(fields, "mine")
    one_line(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "re:(a+)+$",
        "re:(.*)*x",
        "re:.*.*.*.*.*.*x",
        "*" * 9,
        "re:" + "(.|.)" * 30,
        "re:" + ".?" * 40,
        "re:((((",
        "re:\\",
    ],
)
def test_a_pattern_with_exponential_backtracking_is_rejected(pattern: str) -> None:
    stored = {**QUANTIZED[-1], "ignore": [pattern]}
    with pytest.raises(
        UserError, match=r"may be too slow to match; allowed: at most|is not a regular expression"
    ) as error:
        parse({**LLAMA, "quantization_config": stored}, "mine")
    one_line(error.value)


@pytest.mark.parametrize("entry", ["model.layers.{}.mlp.gate_proj", "nothing{}", "layers.{}9999999999.x"])
def test_a_list_of_fifty_thousand_modules_is_read(entry: str) -> None:
    stored = {**QUANTIZED[-1], "ignore": [entry.format(number) for number in range(50_000)]}
    assert parse({**LLAMA, "quantization_config": stored}, "mine").parameters == 6738415616


def test_more_than_five_hundred_patterns_are_rejected() -> None:
    stored = {**QUANTIZED[-1], "ignore": [f"re:.*{number}" for number in range(501)]}
    with pytest.raises(UserError, match="a module list has more than 500 patterns"):
        parse({**LLAMA, "quantization_config": stored}, "mine")


# --- chips -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(paths(H100))), st.sampled_from((*HOSTILE, ..., {"value": 1e-300}, {"vale": 1}))
        ),
        min_size=1,
        max_size=2,
    )
)
def test_any_spec_gives_a_finite_result_or_a_one_line_error(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    fields = H100
    for path, value in changes:
        fields = with_change(fields, path, value)
    try:
        chip = specs.parse(fields, stem="mine")
        answer = lv.analyze(MODEL, chip, batch_size=2, input_len=5, output_len=3).to_dict()
    except UserError as error:
        one_line(error)
        return
    json.dumps(answer, allow_nan=False)
    assert all(stage["time_s"] > 0 for stage in answer["stages"].values())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("memory_bandwidth_gb_per_s", -1, "_per_s: expected a positive number (1e-6 to 1e15), got -1"),
        ("memory_bandwidth_gb_per_s", "fast", "got 'fast'"),
        ("memory_bandwidth_gb_per_s", {"vale": 1}, "gb_per_s: unknown key 'vale'; allowed: note, source"),
        ("memory_bandwidth_gb_per_s", ..., "mine: missing memory_bandwidth_gb_per_s"),
        ("memory_bandwith_gb_per_s", 1, "did you mean 'memory_bandwidth_gb_per_s'"),
        ("dense_tflops.fp61", 1, "dense_tflops: unknown key 'fp61'; allowed: bf16, fp16"),
        ("dense_tflops", {"int8": 1}, "mine has no matrix rate for 'fp16'"),
        ("dense_tflops", [], "dense_tflops: expected a mapping, got a list"),
        ("default_link", "nvlnk", "mine: unknown default_link 'nvlnk'; allowed: nvlink, pcie; did you mean 'nvlink'?"),
        ("default_link", ["nvlink"], "mine: default_link: expected text, got a list"),
        ("links.nvlink.needs_bridge", "no", "links.nvlink.needs_bridge: expected true or false, got 'no'"),
        ("links.nvlink.gbps", 1, "links.nvlink: unknown key 'gbps'"),
        ("name", 3, "mine: name: expected text, got 3"),
    ],
)  # fmt: skip
def test_an_error_in_a_spec_names_the_key(path: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        lv.analyze(MODEL, specs.parse(with_change(H100, tuple(path.split(".")), value), stem="mine"))
    one_line(error.value)
    assert message in str(error.value)
