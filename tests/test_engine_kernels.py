"""Passes that presets add: 8-bit inputs of 4-bit experts, and the popularity of experts in served requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmviewer.api.configuration import configuration
from llmviewer.core.ir import Graph, Operator, check
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.kernels.of_engine import with_engine_kernels
from llmviewer.techniques.sparsity.expert_skew import distinct_experts, selection_probabilities
from llmviewer.timing import engine

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
