"""Passes that presets add: 8-bit inputs of 4-bit experts, and the popularity of experts in served requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.api.configuration import configuration
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Operator, Role, Tensor, check, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.kernels.of_engine import with_engine_kernels
from llmviewer.techniques.sparsity.expert_skew import distinct_experts, selection_probabilities
from llmviewer.timing import engine, engine_work

from .answers import answer


def step(model: str, hardware: str, **options: Any) -> Graph:
    """Decode step of 32 sequences after all passes."""
    found = configuration(model, hardware, **options)
    return found.system.prepared(found.model.graph(decode(32.0, 100.0)))


def named(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


@pytest.mark.parametrize(("hardware", "bits"), [("b200", 8.25), ("h200", 16.0)])
def test_blackwell_multiplies_mxfp4_experts_with_mxfp8_inputs(hardware: str, bits: float) -> None:
    """8 bits and an 8-bit scale per 32 elements; Hopper has no units for 4-bit weights and keeps 16 bits."""
    graph = step("gpt-oss-120b", hardware, engine="trtllm")
    product = named(graph, "expert_gate_up_proj")
    assert product.reads[0].tensor.dtype.bits == bits
    assert product.weight_dtype.name == "mxfp4"
    check(graph)


def test_without_an_engine_and_for_other_formats_inputs_keep_16_bits() -> None:
    plain = named(step("gpt-oss-120b", "b200"), "expert_gate_up_proj")
    assert plain.reads[0].tensor.dtype.bits == 16.0
    stated = named(step("gpt-oss-120b", "b200", engine="trtllm", quantization="bf16"), "expert_gate_up_proj")
    assert (stated.reads[0].tensor.dtype.bits, stated.weight_dtype.bits) == (16.0, 16.0)
    other = named(step("mixtral-8x7b", "b200", engine="trtllm"), "expert_gate_up_proj")
    assert other.reads[0].tensor.dtype.bits == 16.0


def skewed(model: str, alpha: float, *, routed: bool = False) -> Graph:
    """Step of an engine whose requests choose experts with popularity i^-alpha."""
    found = configuration(model, "h200")
    preset = replace(engine.load("vllm").on(specs.load("h200")), expert_skew=alpha)
    system = with_engine_kernels(replace(found.system, engine=preset), routed=routed)
    return system.prepared(found.model.graph(decode(32.0, 100.0)))


def test_requests_of_a_preset_reach_fewer_experts_unless_the_user_states_the_routing() -> None:
    """gpt-oss-120b, 32 tokens, 4 of 128 experts: uniform 128 (1 - (31/32)^32) = 81.7; i^-0.7 fewer."""

    def active(graph: Graph) -> float:
        shape = named(graph, "expert_down_proj").shape
        assert isinstance(shape, GemmShape)
        return float(np.ravel(shape.active)[0])

    expected = float(distinct_experts(selection_probabilities(0.7, 128, 4.0), 32.0))
    assert active(skewed("gpt-oss-120b", 0.7)) == pytest.approx(expected)
    assert active(skewed("gpt-oss-120b", 0.7, routed=True)) == pytest.approx(128 * (1 - (31 / 32) ** 32))
    assert expected < 75


def test_models_without_experts_are_served_as_before() -> None:
    names = [[op.name for _, op in skewed("llama-3.1-8b", alpha)] for alpha in (0.0, 0.7)]
    assert names[0] == names[1]


def test_no_preset_changes_ideal_counts() -> None:
    """An engine needs calibrated times; the ideal graph has neither its kernels nor its routing."""
    found = answer("gpt-oss-120b", "b200", batch_size=32, output_len=2)
    names = [row["name"] for row in found["stages"]["decode"]["operators"]]
    assert "cache_write" not in names and "mlp_add" in names


def test_llama_cpp_multiplies_prompts_at_the_rate_of_fp16_sums() -> None:
    """165.2 TFLOP/s of an RTX 4090 with fp32 sums are 330.4 with fp16 sums; an A100 has one rate for both."""
    for hardware, rates in (("rtx-4090", (165.2e12, 330.4e12)), ("a100-80gb-sxm", (312e12, 312e12))):
        plain, own = (
            configuration("llama-2-7b", hardware, engine=name).system.chip for name in ("torch-eager", "llama.cpp")
        )
        assert (plain.matrix_rate("fp16"), own.matrix_rate("fp16")) == pytest.approx(rates)
        assert (own.matrix_rate("int8"), own.vector_rate("fp16")) == (
            plain.matrix_rate("int8"),
            plain.vector_rate("fp16"),
        )
        assert own.accumulating_in_fp16() is own


def test_kernels_of_a_hypothetical_geforce_reach_the_share_that_those_of_the_real_one_reach() -> None:
    """The figures of the real card, set by hand, change nothing."""
    real, same = (
        answer("llama-2-7b", "rtx-4090", engine="llama.cpp", efficiency="calibrated", **given)["metrics"]["ttft_s"]
        for given in ({}, {"set": "bandwidth=1008GB/s"})
    )
    assert same == pytest.approx(real, rel=1e-12)


def test_integer_kernels_pad_columns_to_tiles_and_read_every_weight_once() -> None:
    """q4_0 of a layer of Llama-2-7B: 202.4M weights of 4.5 bits; experts pad to tiles as wide as the pass."""
    dense = configuration("llama-2-7b", "rtx-4090", engine="llama.cpp", quantization="q4_0")
    layer = next(
        block for block in dense.system.prepared(dense.model.graph(decode(10.0, 1.0))).blocks if block.is_layer
    )
    graph = replace(dense.model.graph(decode(10.0, 1.0)), blocks=(replace(layer, repeats=1.0),))
    weights = 4 * 4096**2 + 3 * 4096 * 11008
    read = kernels(bandwidth=1.0).products_s(graph, 10.0)
    assert read == pytest.approx(weights * 4.5 / 8, rel=1e-9)
    multiplied = kernels(rate=1.0).products_s(graph, 10.0)
    assert multiplied == pytest.approx(2.0 * 16.0 * weights)  # 10 columns take two tiles of 8


def kernels(*, rate: float = np.inf, bandwidth: float = np.inf, vector: float = 1.0) -> engine_work.IntegerKernels:
    return engine_work.IntegerKernels(rate=rate, bandwidth=bandwidth, tile=128.0, vector=vector)


@pytest.mark.parametrize(("tokens", "columns"), [(10.0, 16.0), (120.0, 120.0), (512.0, 128.0)])
def test_tiles_of_experts_are_as_wide_as_a_pass_up_to_128_columns(tokens: float, columns: float) -> None:
    """Two rows an expert, and half a tile, which is empty in the mean."""
    found = kernels(rate=1.0).products_s(experts_of_two_rows(), tokens)
    assert found == pytest.approx(3.0 * 2.0 * 64.0 * (2.0 + columns / 2.0) * 100.0 * 10.0)


def test_matrix_vector_kernels_read_experts_once_for_each_token_up_to_a_limit() -> None:
    """Two rows an expert read its weights, one byte in all, twice below the limit; beyond it once."""
    few = kernels(bandwidth=1.0, vector=31.0)
    assert few.products_s(experts_of_two_rows(), 31.0) == pytest.approx(3.0 * 2.0)
    assert few.products_s(experts_of_two_rows(), 32.0) == pytest.approx(3.0)


def experts_of_two_rows() -> Graph:
    shape = GemmShape(m=64.0 * 2.0, n=100.0, k=10.0, experts=64.0, active=64.0)
    weight = Tensor(name="w", elements=1.0, dtype=DTYPES["int8"], role=Role.WEIGHT)
    product = Operator(
        name="expert_up_proj",
        kind=Kind.GEMM,
        reads=(whole(weight),),
        writes=(),
        output_shape=(128.0, 100.0),
        shape=shape,
    )
    return Graph(blocks=(Block(name="layer", operators=(product,), repeats=3.0),))


@pytest.mark.parametrize(
    ("build", "preset", "attention"),
    [
        ("b2900", "llama.cpp-2024", "eager"),
        ("b4000", "llama.cpp", "eager"),
        ("b6324", "llama.cpp", "eager"),
        ("b6325", "llama.cpp", "flash"),
        ("", "llama.cpp", "flash"),
    ],
)
def test_builds_of_llama_cpp_choose_kernels(build: str, preset: str, attention: str) -> None:
    found = engine.load(f"llama.cpp=={build}" if build else "llama.cpp")
    assert (found.name, found.attention) == (preset, attention)
    run = {"engine": f"llama.cpp=={build}" if build else "llama.cpp", "input_len": 4096, "efficiency": "calibrated"}
    eager, flash = (answer("llama-3.1-8b", "rtx-4090", attention=one, **run)["metrics"] for one in ("eager", "flash"))
    default = answer("llama-3.1-8b", "rtx-4090", **run)["metrics"]
    assert default["ttft_s"] == (flash if attention == "flash" else eager)["ttft_s"]
    assert flash["ttft_s"] < eager["ttft_s"]


def test_a_batch_beyond_the_matrix_vector_kernel_does_not_unpack_all_experts() -> None:
    """gpt-oss-120b on a DGX Spark: 100 tokens/s at batch 8, 4.9 at batch 9 as the builds of May 2024 ran it; 176 are
    published at batch 16 (https://github.com/ggml-org/llama.cpp/blob/master/benches/dgx-spark.md)."""
    run = {"engine": "llama.cpp", "quantization": "mxfp4_moe", "input_len": 4096, "output_len": 32}
    per_s = {
        batch: batch
        / answer("gpt-oss-120b", "gb10", batch_size=batch, efficiency="calibrated", **run)["metrics"]["tpot_s"]
        for batch in (8, 9, 16)
    }
    assert per_s[8] < per_s[9] < per_s[16]
    assert 0.7 < per_s[16] / 176.5 < 1.3


@pytest.mark.parametrize(
    ("hardware", "engine_name", "quantization", "computed"),
    [
        ("h100-sxm", "vllm", "nvfp4", "fp16"),
        ("h100-sxm", "kernels", "nvfp4", "fp16"),
        ("l40s", "sglang", "w4a4-nvfp4", "fp16"),
        ("a100-80gb-sxm", "vllm", "fp8", "fp16"),
        ("a100-80gb-sxm", "vllm", "w4a8-fp8", "fp16"),
        ("h100-sxm", "vllm", "fp8", "fp8"),
        ("b200", "vllm", "nvfp4", "fp4"),
        ("b200", "trtllm", "nvfp4", "fp4"),
        ("mi300x", "vllm", "nvfp4", "fp16"),
    ],
)
def test_narrow_inputs_without_units_are_multiplied_in_16_bit(
    hardware: str, engine_name: str, quantization: str, computed: str
) -> None:
    """vLLM's FP8 Marlin (pull 5975) and FP4 Marlin (pull 17687): weights as stored, inputs in 16 bit."""
    product = named(step("llama-2-7b", hardware, engine=engine_name, quantization=quantization), "o_proj")
    assert product.compute == computed
    assert product.weight_dtype.bits < 9.0
    noted = any("16-bit inputs" in line for line in lv.analyze("llama-2-7b", hardware, engine=engine_name,
                                                           quantization=quantization).warnings)  # fmt: skip
    assert noted == (computed == "fp16")


def test_weight_only_products_take_the_time_of_other_weight_only_ones() -> None:
    """4.5 bits a weight against the 4.125 of w4a16: a ninth more bytes, the same kernel."""
    fp4, int4 = (
        lv.analyze("llama-3.1-8b", "h100-sxm", engine="vllm", quantization=name, input_len=4096)
        for name in ("nvfp4", "w4a16")
    )
    assert float(fp4.ttft_s) == pytest.approx(float(int4.ttft_s), rel=0.02)
    assert 1.0 < float(fp4.tpot_s) / float(int4.tpot_s) < 4.5 / 4.125


@pytest.mark.parametrize(
    ("hardware", "engine_name", "quantization"),
    [("h100-sxm", "trtllm", "nvfp4"), ("a100-80gb-sxm", "trtllm", "fp8"), ("h100-sxm", "vllm==0.8", "nvfp4"),
     ("v100-32gb-sxm", "vllm", "fp8"), ("l40s", "sglang==0.5.9", "nvfp4")],
)  # fmt: skip
def test_an_engine_without_such_kernels_refuses(hardware: str, engine_name: str, quantization: str) -> None:
    with pytest.raises(UserError, match=r"has no kernels for fp[48] products on"):
        lv.analyze("llama-2-7b", hardware, engine=engine_name, quantization=quantization)


def test_the_roofline_keeps_the_fastest_units_that_could_multiply() -> None:
    assert named(step("llama-2-7b", "h100-sxm", quantization="nvfp4", efficiency="ideal"), "o_proj").compute == "fp4"


@pytest.mark.parametrize(
    ("hardware", "engine_name", "bits", "stored"),
    [
        ("rtx-4090", "llama.cpp", {"weight_bits": 4}, "q4_k_m"),
        ("rtx-4090", "ollama", {"weight_bits": 8, "activation_bits": 8}, "q8_0"),
        ("rtx-4090", "llama.cpp", {"weight_bits": 5}, "q5_k_m"),
        ("m3-max", "mlx-lm", {"weight_bits": 4}, "int4-g64"),
        ("m3-max", "vllm-mlx", {"weight_bits": 6}, "int6-g64"),
        ("rtx-4090", "exllamav2", {"weight_bits": 3}, "exl-3"),
        ("h100-sxm", "vllm", {"weight_bits": 4}, "int4-g128"),
    ],
)
def test_plain_bits_are_the_engines_own_type(
    hardware: str, engine_name: str, bits: dict[str, int], stored: str
) -> None:
    found = lv.analyze("llama-2-7b", hardware, engine=engine_name, **bits)
    assert named(found.analysis.whole_graph, "o_proj").weight_dtype.name == stored
    assert any(line.endswith(" here") for line in found.warnings) == (engine_name != "vllm")


def test_cache_bits_are_the_types_of_llama_cpp() -> None:
    found = lv.analyze("llama-2-7b", "rtx-4090", engine="llama.cpp", kv_bits=8)
    assert "--kv-cache-dtype kv8 of llama.cpp is q8_0 here" in found.warnings


@pytest.mark.parametrize(
    ("hardware", "engine_name", "quantization", "own"),
    [("rtx-4090", "llama.cpp", "nvfp4", "q8_0"), ("rtx-4090", "llama.cpp", "fp8", "q8_0"),
     ("m3-max", "mlx-lm", "fp8", "mlx-8bit")],
)  # fmt: skip
def test_formats_that_are_no_type_of_the_engine_are_refused(
    hardware: str, engine_name: str, quantization: str, own: str
) -> None:
    with pytest.raises(UserError, match=rf"has no weights in {quantization} .* allowed: its own types, as {own}"):
        lv.analyze("llama-2-7b", hardware, engine=engine_name, quantization=quantization)
