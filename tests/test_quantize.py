"""The quantization pass: which tensors change format, which operators quantize inputs, and conversion costs."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.ir import Block, Graph, Operator, Role, check
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.formats.linear import is_quantize
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.presets import PRESETS
from llmviewer.techniques.quantization.quantize import QuantizationScheme, quantize

SCHEMES = ("w8a8", "fp8", "w4a16", "awq", "mxfp4", "nvfp4", "w4a8kv4", "w8a16kv8-fp8", "w16a8", "w3a16kv2")
#: Models with grouped-query attention, shared experts, latent attention, fused matrices, no rope, recurrence.
MODELS = ("llama-2-70b", "qwen1.5-moe-a2.7b", "mixtral-8x7b", "deepseek-v2-lite", "phi-3-mini", "mamba-2.8b")


load = functools.cache(models.load)
patient = settings(max_examples=40)  # each example builds whole models


def graph(model: str, step: Step) -> Graph:
    return load(model).graph(step)


def quantized(model: str, step: Step, scheme: str) -> Graph:
    return quantize(parse_scheme(scheme))(graph(model, step))


def layer(graph: Graph) -> Block:
    return graph.blocks[-2]


def operator(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def weight(op: Operator) -> Dtype:
    return next(a.tensor.dtype for a in op.reads if a.tensor.name.endswith(".weight"))


def total(graph: Graph, field: str) -> float:
    return float(sum(getattr(op, field) * block.repeats for block, op in graph))


def weight_bytes(block: Block) -> float:
    return float(sum(t.elements * t.dtype.bytes for t in block.weights().values())) * block.repeats


def test_w8a8_halves_the_weights_of_a_projection_and_the_inputs_it_reads() -> None:
    """q_proj of Llama-2-7B over 2048 tokens: 4096 x 4096 weights and 2048 x 4096 inputs, one byte each instead of two;
    the output stays at two."""
    plain = operator(graph("llama-2-7b", prefill(1.0, 2048.0)), "q_proj")
    low = operator(quantized("llama-2-7b", prefill(1.0, 2048.0), "w8a8"), "q_proj")
    assert plain.read_bytes(Role.WEIGHT) == 2 * 4096 * 4096 and low.read_bytes(Role.WEIGHT) == 4096 * 4096
    assert plain.read_bytes(Role.ACTIVATION) == 2 * 2048 * 4096 and low.read_bytes(Role.ACTIVATION) == 2048 * 4096
    assert low.write_bytes(Role.ACTIVATION) == plain.write_bytes(Role.ACTIVATION) == 2 * 2048 * 4096
    assert low.flops == plain.flops == 2 * 2048 * 4096 * 4096


def test_q_k_and_v_share_one_quantized_input() -> None:
    """attn_norm_quantize reads 4096 elements of 2 bytes, writes 4096 of 1, with 3 FLOP each."""
    block = layer(quantized("llama-2-7b", decode(1.0, 100.0), "w8a8"))
    makers = [op for op in block.operators if is_quantize(op)]
    assert [op.name for op in makers] == [
        "attn_norm_quantize",
        "sv_matmul_quantize",
        "mlp_norm_quantize",
        "mlp_act_quantize",
    ]
    assert makers[0].traffic_bytes == 4096 * 2 + 4096 * 1
    assert makers[0].vector_flops == makers[0].flops == 3 * 4096
    readers = [op.name for op in block.operators if "attn_norm_quantize" in op.inputs]
    assert readers == ["q_proj", "k_proj", "v_proj"]
    assert [op.name for op in block.operators if "mlp_norm_quantize" in op.inputs] == ["gate_proj", "up_proj"]


def test_w8a8_adds_only_the_flops_of_the_quantize_operators() -> None:
    """Llama-2-7B, per layer and token: 3 x (4096 + 4096 + 4096 + 11008) vector FLOP, nothing else."""
    step = prefill(1.0, 10.0)
    before, after = graph("llama-2-7b", step), quantized("llama-2-7b", step, "w8a8")
    assert total(after, "flops") - total(before, "flops") == 32 * 10 * 3 * (3 * 4096 + 11008)
    assert total(after, "matmul_flops") == total(before, "matmul_flops")


def test_w8a8_with_a_16_bit_cache_runs_on_the_int8_units_of_an_a100() -> None:
    """624 dense TOPS, twice bf16's 312; attention and lm_head stay at 16 bit."""
    a100 = specs.load("a100-80gb-sxm")
    found = quantized("llama-2-7b", prefill(1.0, 2048.0), "w8a8")
    assert operator(found, "q_proj").compute == operator(found, "down_proj").compute == "int8"
    assert a100.matrix_rate(operator(found, "q_proj").compute) == 624e12
    assert operator(found, "qk_matmul").compute == operator(found, "lm_head").compute == "fp16"
    assert {state.dtype.name for state in layer(found).states} == {"fp16"}


@pytest.mark.parametrize(
    ("scheme", "compute"),
    [
        ("w8a8", "int8"),
        ("fp8", "fp8"),
        ("w4a16", "fp16"),
        ("w8a16-fp8", "fp16"),
        ("w4a8", "int8"),
        ("w4a8-fp8", "fp8"),
        ("w4a4", "int4"),
        ("mxfp4", "fp16"),
        ("nvfp4", "fp4"),
        ("w16a8", "fp16"),
    ],
)
def test_a_matmul_runs_on_units_of_its_wider_operand(scheme: str, compute: str) -> None:
    assert operator(quantized("llama-2-7b", decode(1.0, 9.0), scheme), "up_proj").compute == compute


def test_4_bit_weights_carry_their_scales() -> None:
    """Matrices of the 32 layers of Llama-2-7B: 32 (4 x 4096^2 + 3 x 4096 x 11008) = 6.476e9 weights.  At 4 bits
    3.238 GB, at 4 + 16/128 bits 3.339 GB, at 4 + 20/128 (awq, gptq) 3.364 GB; norms add 16,384 bytes per layer."""
    matrices, norms = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32 * 2 * 4096 * 2
    assert matrices * 4 / 8 == pytest.approx(3.238e9, rel=1e-4)
    for scheme, bits, gigabytes in (("w4a16", 4.125, 3.339), ("awq", 4.15625, 3.364), ("gptq", 4.15625, 3.364)):
        stored = weight_bytes(layer(quantized("llama-2-7b", decode(1.0, 9.0), scheme)))
        assert stored - norms == matrices * bits / 8 == pytest.approx(gigabytes * 1e9, rel=2e-4)


def test_weight_only_schemes_convert_every_weight_once_per_tile_of_128_rows() -> None:
    """2 FLOP (scale, convert) per weight: once for 1 to 128 tokens, twice for 129, 16 times for 2048."""
    for tokens, tiles in ((1.0, 1), (128.0, 1), (129.0, 2), (2048.0, 16)):
        op = operator(quantized("llama-2-7b", prefill(1.0, tokens), "w4a16"), "o_proj")
        assert op.vector_flops == tiles * 2 * 4096 * 4096
    assert operator(quantized("llama-2-7b", prefill(1.0, 2048.0), "w8a8"), "o_proj").vector_flops == 0


def test_a_bias_is_kept_unquantized() -> None:
    """q_proj of Qwen2-7B: 3584 x 3584 weights and 3584 biases; over 10 tokens 10 x 3584 FLOP of bias."""
    op = operator(quantized("qwen2-7b", prefill(1.0, 10.0), "w4a16"), "q_proj")
    assert op.read_bytes(Role.WEIGHT) == 3584 * 3584 * 4.125 / 8 + 3584 * 2
    assert op.vector_flops == 10 * 3584 + 2 * 3584 * 3584


def test_experts_dequantize_the_weights_they_read_per_tile_of_rows() -> None:
    """Mixtral: 2 of 8 experts per token.  1024 tokens give 2048 rows for all 8 experts (to within 1e-120): 256 rows
    each, 2 tiles of all weights.  1 token gives 2 rows for 2 experts: 1 tile of two experts' weights."""
    matrix = 4096 * 14336
    many = operator(quantized("mixtral-8x7b", prefill(1.0, 1024.0), "w4a16"), "expert_up_proj")
    assert many.vector_flops == pytest.approx(2 * 2 * 8 * matrix, rel=1e-12)
    one = operator(quantized("mixtral-8x7b", prefill(1.0, 1.0), "w4a16"), "expert_up_proj")
    assert one.vector_flops == pytest.approx(2 * 2 * matrix, rel=1e-12)


def test_routers_gates_embeddings_heads_and_norms_keep_their_dtype() -> None:
    found = quantized("qwen1.5-moe-a2.7b", prefill(1.0, 64.0), "w4a8")
    low = {"int4-g128"}
    for _, op in found:
        stored = {a.tensor.dtype.name for a in op.reads if a.tensor.role is Role.WEIGHT}
        kept = op.name in ("router", "shared_gate", "lm_head", "embedding") or op.name.endswith("norm")
        assert stored.isdisjoint(low) or not kept, op.name
    for name in ("q_proj", "o_proj", "expert_gate_proj", "expert_down_proj", "shared_up_proj"):
        assert weight(operator(found, name)).name == "int4-g128", name
    assert operator(found, "router").inputs == ("mlp_norm",)
    assert operator(found, "expert_gate_proj").inputs == ("mlp_norm_quantize",)


def test_an_integer_cache_stores_a_scale_and_a_zero_point_per_head() -> None:
    """Llama-2-70B, heads of 128: kv4 is 4 + 32/128 = 4.25 bits and kv8 8.25; fp8 is 8.  Its 80 layers keep 2 x 8 x 128
    elements per token: 163840 x 4.25 / 8 = 87040 bytes instead of 327680."""
    for scheme, bits in (("w16a16kv4", 4.25), ("w16a16kv8", 8.25), ("w16a16kv8-fp8", 8.0), ("w16a16kv16", 16.0)):
        found = quantized("llama-2-70b", decode(1.0, 4095.0), scheme)
        states = layer(found).states
        assert {state.dtype.bits for state in states} == {bits}
        assert sum(s.resident_bytes(1.0) for s in states) * 80 == 163840 * bits / 8
        assert operator(found, "qk_matmul").read_bytes(Role.CACHE) == 4096 * 8 * 128 * bits / 8
        assert operator(found, "v_proj").write_bytes(Role.CACHE) == 8 * 128 * bits / 8
        assert operator(found, "qk_matmul").compute == "fp16"


def test_a_scale_of_the_cache_is_as_wide_as_its_head() -> None:
    """MiMo-V2-Flash: heads of 192 elements for keys and of 128 for values, so kv4 is 4 + 32/192 and 4 + 32/128 bits."""
    found = quantized("mimo-v2-flash", decode(1.0, 100.0), "w16a16kv4")
    bits = {state.name: state.dtype.bits for block in found.blocks for state in block.states}
    assert bits == {"k_cache": 4 + 32 / 192, "v_cache": 4 + 32 / 128}


def test_a_cached_latent_is_one_head_of_its_whole_width() -> None:
    """DeepSeek-V2-Lite caches 512 + 64 elements per token: kv8 is 8 + 32/576 bits."""
    found = quantized("deepseek-v2-lite", decode(1.0, 100.0), "w16a16kv8")
    (state,) = layer(found).states
    assert state.per_token == 576 and state.dtype.bits == 8 + 32 / 576


def test_recurrent_state_is_not_quantized_like_the_kv_cache() -> None:
    plain, low = (
        layer(g) for g in (graph("mamba-2.8b", decode(1.0, 9.0)), quantized("mamba-2.8b", decode(1.0, 9.0), "w8a8kv8"))
    )
    assert [s.dtype for s in low.states] == [s.dtype for s in plain.states]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", ["none", "fp16", "bf16", "w16a16", "w16a16kv16"])
def test_16_bit_schemes_do_not_change_a_16_bit_model(model: str, scheme: str) -> None:
    step = prefill(np.array([1.0, 3.0]), np.array([7.0, 300.0]))
    assert_equal(graph(model, step), quantized(model, step, scheme))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("first", SCHEMES)
def test_a_second_scheme_replaces_the_first(model: str, first: str) -> None:
    """w16a16kv16 after any scheme restores the plain graph; w4a8kv4 after it gives w4a8kv4."""
    step = prefill(np.array([1.0, 3.0]), np.array([7.0, 300.0]))
    low = quantized(model, step, first)
    assert_equal(graph(model, step), quantize(parse_scheme("w16a16kv16"))(low))
    assert_equal(quantized(model, step, "w4a8kv4"), quantize(parse_scheme("w4a8kv4"))(low))


def assert_equal(left: Graph, right: Graph) -> None:
    """Asserts equal operators and counts, bit for bit if counts are integers."""
    for (_, a), (_, b) in zip(left, right, strict=True):
        assert (a.name, a.compute, a.inputs) == (b.name, b.compute, b.inputs)
        assert np.array_equal(a.traffic_bytes, b.traffic_bytes), a.name
        assert np.array_equal(a.matmul_flops, b.matmul_flops), a.name
        # expected numbers of experts are fractions: undoing a conversion may change the last bit
        assert np.allclose(a.vector_flops, b.vector_flops, rtol=1e-12, atol=1e-3), a.name
    states = [[(s.name, s.dtype) for block in g.blocks for s in block.states] for g in (left, right)]
    assert states[0] == states[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_operator_input_is_still_written_by_another(model: str, scheme: str) -> None:
    chip = specs.load("h100-sxm")
    for step in (prefill(1.0, 33.0), decode(4.0, 100.0)):
        low = quantized(model, step, scheme)
        for of in (low, flash_attention(chip)(low)):
            check(of)
            assert total(of, "traffic_bytes") > 0
            for block in of.blocks:
                assert len({op.name for op in block.operators}) == len(block.operators)


def test_the_quantize_operator_after_flash_attention_is_named_after_it() -> None:
    chip = specs.load("h100-sxm")
    low = quantized("llama-2-7b", prefill(1.0, 64.0), "w8a8")
    names = [op.name for op in layer(flash_attention(chip)(low)).operators]
    assert "attention_quantize" in names and not any(name.startswith("sv_matmul") for name in names)


@patient
@given(
    batch=st.integers(1, 300),
    new=st.integers(1, 5000),
    scheme=st.sampled_from(SCHEMES),
    model=st.sampled_from(["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite"]),
)
def test_quantizing_keeps_matmul_flops_and_never_grows_weights(batch: int, new: int, scheme: str, model: str) -> None:
    step = prefill(float(batch), float(new))
    before, after = graph(model, step), quantized(model, step, scheme)
    assert total(after, "matmul_flops") == total(before, "matmul_flops")
    assert total(after, "special_ops") == total(before, "special_ops")
    read = [sum(op.read_bytes(Role.WEIGHT) * block.repeats for block, op in g) for g in (before, after)]
    assert read[1] <= read[0]
    kept = [sum(t.elements * n for t, n in g.stored_weights()) for g in (before, after)]
    assert kept[0] == kept[1]


@patient
@given(points=st.lists(st.tuples(st.integers(1, 64), st.integers(1, 3000)), min_size=1, max_size=4))
def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point(points: list[tuple[int, int]]) -> None:
    batch, new = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    sweep = quantized("mixtral-8x7b", prefill(batch, new), "w4a8kv4")
    for at in range(len(points)):
        single = quantized("mixtral-8x7b", prefill(batch[at : at + 1], new[at : at + 1]), "w4a8kv4")
        for (_, a), (_, b) in zip(sweep, single, strict=True):
            assert np.broadcast_to(a.flops, batch.shape)[at] == np.broadcast_to(b.flops, (1,))[0]
            assert np.broadcast_to(a.traffic_bytes, batch.shape)[at] == np.broadcast_to(b.traffic_bytes, (1,))[0]


def test_kept_layers_stay_in_16_bit() -> None:
    """FBGEMM FP8 converts the feed-forward part only."""
    graph_ = quantized("llama-2-7b", decode(1.0, 9.0), "fbgemm-fp8")
    assert [weight(operator(graph_, name)).bits for name in ("q_proj", "o_proj", "down_proj")] == [16, 16, 8]


def test_none_keeps_the_format_of_a_role() -> None:
    """Only activations: weights keep 16 bits; only weights: no quantize operator."""
    step = decode(1.0, 9.0)
    inputs = quantize(QuantizationScheme(name="inputs", activations=DTYPES["int8"]))(graph("llama-2-7b", step))
    assert weight(operator(inputs, "q_proj")).bits == 16
    assert operator(inputs, "q_proj").inputs == ("attn_norm_quantize",)
    weights = quantize(QuantizationScheme(name="weights", weights=DTYPES["int8"]))(inputs)
    assert (
        operator(weights, "q_proj").inputs == ("attn_norm_quantize",) and operator(weights, "q_proj").compute == "int8"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs(name: str) -> None:
    check(quantized("llama-2-7b", decode(1.0, 9.0), name))
