"""Rows of measured products: which tensors stay in the L2 between repetitions, and whose input is quantized inside."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.core.ir import Operator, Place, Role
from llmviewer.timing.kernels import gemm

L40S_L2 = 96 * 2**20


def operator(engine: str, m: int, n: int, k: int, **more: Any) -> Operator:
    row = {"device": "l40s", "source": "aiconfigurator", "engine": f"{engine} 1.0", "dtype": "bfloat16"}
    group = next(iter(row_groups(pd.DataFrame([row | {"m": m, "n": n, "k": k, "latency_us": 10.0} | more]))))
    assert isinstance(group, RowGroup)
    return group.operators[-1]


def kept(found: Operator, role: Role) -> float:
    """Share of the bytes of weights, or of inputs and outputs, that stay in the L2."""
    accesses = [a for a in (*found.reads, *found.writes) if a.tensor.role is role]
    inside = sum(a.elements * a.tensor.dtype.bytes for a in accesses if a.tensor.place is Place.L2)
    return float(sum(inside) / sum(sum(a.elements * a.tensor.dtype.bytes for a in accesses)))  # type: ignore[arg-type]


def test_weights_stay_in_the_l2_if_all_copies_fit() -> None:
    """2 MB: 6 copies are 12.6 MB of 100.7; 33.6 MB: 6 copies are 201 MB, none of which is read again in time."""
    assert kept(operator("vllm", 1, 1024, 1024), Role.WEIGHT) == pytest.approx(0.99)
    assert kept(operator("vllm", 1, 4096, 4096), Role.WEIGHT) == pytest.approx(0.0)


def test_copies_of_tensorrt_llm_fill_the_l2_once() -> None:
    """Weights of 50.3 MB: 2 copies are exactly the L2.  Inputs and outputs of 0.57 MB evict (1.0057 - 1) / 0.2."""
    matrix, moved = 16384 * 1536 * 2, 16 * (1536 + 16384) * 2
    assert 2 * matrix == L40S_L2
    share = (1.2 - (2 * matrix + moved) / L40S_L2) / 0.2
    assert kept(operator("trtllm", 16, 16384, 1536), Role.WEIGHT) == pytest.approx(share)
    assert kept(operator("vllm", 16, 16384, 1536), Role.WEIGHT) == pytest.approx(0.0)


def test_one_input_stays_in_the_l2_but_not_six() -> None:
    """16 MB of weights, 8.4 of inputs and 33.6 of outputs fit at 58 MB; SGLang's 6 inputs and weights do not."""
    sizes = (2048, 8192, 1024)
    assert kept(operator("vllm", *sizes), Role.ACTIVATION) == pytest.approx(0.99)
    found = operator("sglang", *sizes)
    inputs = [a for a in found.reads if a.tensor.role is Role.ACTIVATION and a.tensor.place is Place.L2]
    assert sum(float(a.elements[0]) for a in inputs) == pytest.approx(0.0)  # type: ignore[index]


def test_block_scaled_products_of_vllm_run_on_one_copy() -> None:
    """33.6 MB in 8 bit: one copy fits, 6 do not."""
    sizes = (1, 8192, 4096)
    assert kept(operator("vllm", *sizes, dtype="fp8_block"), Role.WEIGHT) == pytest.approx(0.99)
    assert kept(operator("vllm", *sizes, dtype="fp8"), Role.WEIGHT) == pytest.approx(0.0)


def test_smooth_quant_rows_are_8_bit_integers_quantized_before() -> None:
    found = operator("trtllm", 64, 4096, 4096, dtype="sq", device="a100_sxm")
    assert gemm.variant(found) == "int8" and found.shape.converts == 0.0  # type: ignore[attr-defined]
    assert operator("vllm", 64, 4096, 4096, dtype="fp8").shape.converts == 1.0  # type: ignore[attr-defined]


def test_rows_of_whole_ticks_were_timed_launch_by_launch() -> None:
    """9.216 us are 9 ticks of an A100's time stamps; a mean over a CUDA graph of several runs is no whole number."""
    alone = operator("trtllm", 1, 512, 128, dtype="int4_wo", device="a100_sxm", latency_us=9.216)
    in_a_graph = operator("trtllm", 1, 512, 128, dtype="int4_wo", device="a100_sxm", latency_us=2.6965)
    assert alone.shape.stamped == 1.0 and in_a_graph.shape.stamped == 0.0  # type: ignore[attr-defined]
    own = operator("trtllm", 1, 512, 128, device="a100_sxm", latency_us=9.216, source="llmviewer")
    assert own.shape.stamped == 0.0  # type: ignore[attr-defined]
