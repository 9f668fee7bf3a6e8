"""Roofline: time is that of the slowest resource, and faster hardware is never slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Operator, Place, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import Linear
from llmviewer.timing import roofline
from llmviewer.timing.roofline import Timing, ideal

from .answers import analyze, answer, operators

FP16 = DTYPES["fp16"]


def timed(operator: Operator, chip: str | Chip) -> Timing:
    loaded = specs.load(chip) if isinstance(chip, str) else chip
    return roofline.time_operator(operator, loaded, ideal, operator.traffic_bytes)


def square(tokens: float, width: float = 4096.0) -> Operator:
    x = Tensor(name="x", elements=tokens * width, dtype=FP16)
    return Linear(name="proj", in_features=width, out_features=width, dtype=FP16).operator(x, tokens)


def bound(timing: Timing) -> str:
    seconds = {name: float(np.max(spent)) for name, spent in timing.resources}
    return roofline.bound(seconds, seconds)


def test_a_large_matmul_takes_flops_over_peak() -> None:
    """2 x 2048 x 4096^2 / 154.8e12 on the A6000: 0.444 ms."""
    timing = timed(square(2048.0), "a6000")
    assert timing.time_s == 2 * 2048 * 4096**2 / 154.8e12
    assert bound(timing) == "compute"


def test_a_matmul_of_one_token_takes_bytes_over_bandwidth() -> None:
    """(4096^2 + 2 x 4096) x 2 bytes / 768e9 on the A6000: 43.7 us."""
    timing = timed(square(1.0), "a6000")
    assert timing.time_s == 2 * (4096**2 + 2 * 4096) / 768e9
    assert bound(timing) == "memory"


@pytest.mark.parametrize(("chip", "ridge"), [("a6000", 201.6), ("a100", 153.0), ("h100", 295.3)])
def test_the_bound_changes_at_the_ridge_point(chip: str, ridge: float) -> None:
    """Peak / bandwidth [FLOP/byte]: 154.8e12/768e9, 312e12/2039e9, 989.4e12/3350e9."""
    loaded = specs.load(chip)
    assert float(loaded.matrix_rate("fp16") / loaded.bandwidth_bytes_per_s) == pytest.approx(ridge, rel=1e-3)
    for tokens in (1.0, 64.0, 128.0, 192.0, 256.0, 320.0, 512.0, 4096.0):
        op = square(tokens, 16384.0)
        intensity = op.matmul_flops / op.traffic_bytes
        assert bound(timed(op, chip)) == ("compute" if intensity > ridge else "memory")


def test_time_is_that_of_the_slowest_resource_not_the_sum() -> None:
    timing = timed(square(300.0), "a6000")
    assert timing.time_s == max(seconds for _, seconds in timing.resources)


def test_vector_work_runs_on_vector_units_not_at_the_matrix_peak() -> None:
    """1e9 elements x 100 FLOP at 38.7 TFLOP/s: 2.58 ms; 154.8 would give 0.65."""
    x = Tensor(name="x", elements=1e9, dtype=FP16)
    op = Operator(
        name="act", kind=Kind.ELEMENTWISE, reads=(), writes=(whole(x),), output_shape=(1.0,), vector_flops=1e11
    )
    small = replace(op, writes=())
    assert timed(small, "a6000").time_s == 1e11 / 38.7e12
    assert bound(timed(small, "a6000")) == "vector"


def test_exponentials_may_bound_an_operator() -> None:
    """H100: 1e10 exponentials at 16 x 132 x 1.98e9 per second: 2.39 ms; as FLOP of the vector units 0.15 ms."""
    op = Operator(
        name="exp", kind=Kind.SOFTMAX, reads=(), writes=(), output_shape=(1.0,), vector_flops=1e10, special_ops=1e10
    )
    assert timed(op, "h100").time_s == pytest.approx(1e10 / (16 * 132 * 1.98e9))
    assert bound(timed(op, "h100")) == "special"
    assert timed(op, "mi300x").time_s == 1e10 / 163.4e12, "unknown rates drop their term"


def test_rereads_from_the_l2_take_time_only_where_its_bandwidth_is_published() -> None:
    x = Tensor(name="x", elements=1e9, dtype=FP16, place=Place.L2)
    op = Operator(name="again", kind=Kind.COPY, reads=(whole(x),), writes=(), output_shape=(1.0,))
    assert timed(op, "a100").time_s == 2e9 / 7219.2e9
    assert timed(op, "h100").time_s == 0


def test_unknown_terms_are_listed_as_assumed() -> None:
    assert any("special" in line for line in answer("llama-2-7b", "mi300x")["provenance"]["assumed"])
    assert not any("special" in line for line in answer("llama-2-7b", "a100")["provenance"]["assumed"])


def test_attainable_rate_is_the_roof_at_the_operators_intensity() -> None:
    for row in operators(answer("llama-2-7b", "a6000", input_len=2048), "prefill").values():
        if row["bound"] == "memory" and row["flops"]:
            assert row["attainable_flops_per_s"] == pytest.approx(row["arithmetic_intensity"] * 768e9, rel=1e-9)
        if row["bound"] == "compute" and row["flops"] == row["matmul_flops"]:
            assert row["attainable_flops_per_s"] == pytest.approx(154.8e12, rel=1e-9)


#: (name, function that makes part of a chip faster)
FASTER = {
    "bandwidth": lambda chip, by: replace(chip, bandwidth_bytes_per_s=chip.bandwidth_bytes_per_s * by),
    "matrix": lambda chip, by: replace(
        chip, matrix_flops_per_s={name: rate * by for name, rate in chip.matrix_flops_per_s.items()}
    ),
    "vector": lambda chip, by: replace(
        chip, vector_flops_per_s={name: rate * by for name, rate in chip.vector_flops_per_s.items()}
    ),
    "special": lambda chip, by: replace(chip, special_ops_per_s=(chip.special_ops_per_s or 0) * by or None),
    "all": lambda chip, by: FASTER["bandwidth"](FASTER["matrix"](FASTER["vector"](chip, by), by), by),
}
MODEL = models.load("qwen3-30b-a3b")


@settings(max_examples=40)
@given(
    name=st.sampled_from(["a6000", "h100-sxm", "mi300x", "rtx-4090", "tpu-v5e"]),
    part=st.sampled_from(sorted(FASTER)),
    by=st.floats(1.0, 100.0),
    batch=st.integers(1, 256),
    prompt=st.integers(1, 8192),
    attention=st.sampled_from(["flash", "eager"]),
)
def test_more_bandwidth_or_flops_is_never_slower(
    name: str, part: str, by: float, batch: int, prompt: int, attention: str
) -> None:
    chip = specs.load(name)
    sizes: dict[str, Any] = {"batch_size": batch, "input_len": prompt, "output_len": 8, "attention": attention}
    before = analyze(MODEL, chip, **sizes).columns()
    after = analyze(MODEL, FASTER[part](chip, by), **sizes).columns()
    for metric in ("ttft_s", "tpot_s", "e2e_s", "prefill_time_s", "decode_time_s"):
        assert after[metric] <= before[metric] * (1 + 1e-12)


def test_doubling_every_rate_halves_the_time() -> None:
    chip = specs.load("tpu-v5e")  # publishes neither vector nor special-function nor L2 rates
    before, after = (analyze(MODEL, c, input_len=999).columns()["e2e_s"][0] for c in (chip, FASTER["all"](chip, 2)))
    assert after == pytest.approx(before / 2)
