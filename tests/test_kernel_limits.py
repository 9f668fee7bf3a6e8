"""Bounds follow the roofline, whatever the efficiency; what limits a kernel before that is a second fact."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.result.result import Result
from llmviewer.result.stages import LIMITS, values_of_stage
from llmviewer.timing.roofline import BOUNDS, OVERHEAD

from .answers import analyze

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "mamba-2.8b")
FORMATS = ("none", "w4a16", "w8a8", "w8a16", "q4_k_m", "fp8")
ENGINES = ("kernels", "vllm", "llama.cpp")


def roof_of(result: Result, stage: str) -> dict[tuple[str, str], Mapping[str, float]]:
    """Time of every resource on the data sheet's roofline, by block and operator [s]."""
    at, _ = values_of_stage(result.analysis.schedule, stage, 0)
    return {
        (row.block.name, row.operator.name): {name: at(seconds) for name, seconds in row.ideal.resources}
        for row in result.analysis.evaluation.rows
    }


def check_stage(result: Result, name: str) -> None:
    stage, roofs = result.stage(name), roof_of(result, name)
    for one in stage["operators"]:
        spent, roof = one["time_by_resource_s"], roofs[one["block"], one["name"]]
        launch = spent.get(OVERHEAD, 0.0)
        if one["bound"] == OVERHEAD:
            assert launch == max(spent.values())
        else:
            assert roof[one["bound"]] == max(roof.values()), one["name"]
            assert launch <= max(seconds for resource, seconds in spent.items() if resource != OVERHEAD)
        longest = max(spent, key=lambda resource: (spent[resource], -BOUNDS.index(resource)))
        assert bool(one["kernel_limit"]) == (longest != OVERHEAD and roof.get(longest, 0.0) < max(roof.values()))
    assert sum(stage["time_by_bound_s"].values()) == pytest.approx(stage["time_s"], rel=1e-9)
    assert min(stage["time_by_bound_s"].values()) >= -1e-12
    assert stage["bound"] == max(stage["time_by_bound_s"], key=lambda bound: stage["time_by_bound_s"][bound])


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(MODELS), chip=st.sampled_from(sorted(specs.names())), scheme=st.sampled_from(FORMATS),
    engine=st.sampled_from(ENGINES), batch=st.sampled_from((1, 8, 64)), tokens=st.sampled_from((1, 500, 8192)),
)  # fmt: skip
def test_the_bound_of_an_operator_is_the_slowest_resource_of_its_roofline(
    model: str, chip: str, scheme: str, engine: str, batch: int, tokens: int
) -> None:
    try:
        result = analyze(
            model, chip, quantization=scheme, engine=engine, batch_size=batch, input_len=tokens, efficiency="calibrated"
        )
    except UserError:  # the chip has no units for the format, or the engine does not run it
        return
    for name in ("prefill", "decode"):
        check_stage(result, name)


def test_a_decode_left_of_the_ridge_is_memory_bound_though_its_kernels_unpack_weights() -> None:
    """H100: 989.4 TFLOP/s over 3.35 TB/s is a ridge of 295 FLOP per byte; int4 weights give 4 FLOP per byte."""
    result = analyze("llama-3.1-8b", "h100-sxm", quantization="w4a16", engine="vllm", efficiency="calibrated")
    stage = result.stage("decode")
    down = next(one for one in stage["operators"] if one["name"] == "down_proj")
    assert down["matmul_flops"] / down["traffic_bytes"] == pytest.approx(2.0 / (4.125 / 8.0), rel=0.01)
    assert (down["bound"], down["kernel_limit"]) == ("memory", "unpacking of 4-bit weights")
    assert stage["bound"] == "memory" and "compute" not in stage["time_by_bound_s"]
    assert next(iter(stage["time_by_kernel_limit_s"])) == "unpacking of 4-bit weights"


def test_time_of_an_engines_own_kernels_has_the_bound_of_their_operators() -> None:
    """llama.cpp's products of a prompt run slower than those in profiles; that is no launch overhead."""
    stage = analyze(
        "llama-3.1-8b", "rtx-4090", quantization="q4_0", engine="llama.cpp", efficiency="calibrated"
    ).stage("prefill")  # fmt: skip
    own = {term: stage["served_s"][term] for term in ("own gemm kernels",)}
    assert {stage["served_bounds"][term] for term in own} == {"compute"}
    host = ("step", "sampling")
    assert {stage["served_bounds"][term] for term in host} == {OVERHEAD}
    operators = [one for one in stage["operators"] if one["bound"] == OVERHEAD]
    launches = sum(one["time_s"] * one["layers"] for one in operators) + sum(stage["served_s"][one] for one in host)
    assert stage["time_by_bound_s"][OVERHEAD] == pytest.approx(launches, rel=1e-6)
    assert own.items() <= stage["time_by_kernel_limit_s"].items()


def test_the_roofline_itself_has_no_kernel_limits() -> None:
    for name in ("prefill", "decode"):
        stage = analyze("llama-3.1-8b", "rtx-4090", quantization="w4a16", efficiency="ideal").stage(name)
        assert stage["time_by_kernel_limit_s"] == {}
        assert {one["kernel_limit"] for one in stage["operators"]} == {""}


def test_every_resource_has_words_for_kernels_that_it_limits() -> None:
    assert {*LIMITS, OVERHEAD} == set(BOUNDS)
