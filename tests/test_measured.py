"""No measured kernel is faster than the data-sheet bound.

../shared/measured has timings of GEMM and attention kernels by other projects (named in its README); the tests are
skipped without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmviewer.core import dtypes
from llmviewer.core.ir import Operator, Role, Tensor, whole
from llmviewer.core.workload import chunk, decode
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionInputs, AttentionShape, flash
from llmviewer.ops.gemm import Linear
from llmviewer.techniques.kernels.flash_attention import rereads
from llmviewer.timing import roofline
from llmviewer.timing.roofline import ideal

MEASURED = Path(__file__).resolve().parent.parent.parent / "shared" / "measured"
pytestmark = pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured timings are not here")
FORMATS = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}


def timings(name: str) -> list[Any]:
    """Every fifth row of a table; rows are sorted by shape, so all sizes remain."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    return list(pandas.read_parquet(MEASURED / f"{name}.parquet").iloc[::5].itertuples())


def chip_of(row: Any) -> Chip:
    return specs.load(row.device.replace("_", "-"))


def bound_us(operator: Operator, chip: Chip) -> float:
    return float(np.max(roofline.time_operator(operator, chip, ideal, operator.traffic_bytes).time_s)) * 1e6


def attention(row: Any, chip: Chip, groups: Any) -> Operator:
    shape = AttentionShape(
        groups=groups,
        heads=float(row.heads),
        kv_heads=float(row.kv_heads),
        qk_dim=float(row.head_dim),
        v_dim=float(row.head_dim),
        window=float(row.window) or np.inf,
    )
    dtype, stored = dtypes.get_dtype(FORMATS[row.dtype]), dtypes.get_dtype(FORMATS[row.kv_dtype])
    q = Tensor(name="q", elements=shape.queries() * row.heads * row.head_dim, dtype=dtype)
    kv = shape.keys() * row.kv_heads * row.head_dim
    k, v = (Tensor(name=name, elements=kv, dtype=stored, role=Role.CACHE) for name in ("k_cache", "v_cache"))
    inputs = AttentionInputs(q=q, k=(whole(k),), v=(whole(v),))
    return flash(shape, inputs, rereads(shape, inputs, chip), dtype.compute)


def test_no_measured_prefill_of_attention_beats_the_bound() -> None:
    for row in timings("attention_prefill"):
        step = chunk(float(row.batch), float(row.seq), float(row.prefix))
        assert bound_us(attention(row, chip_of(row), step.groups), chip_of(row)) <= row.latency_us, row


def test_no_measured_decode_of_attention_beats_the_bound() -> None:
    for row in timings("attention_decode"):
        step = decode(float(row.batch), row.context - 1.0)
        assert bound_us(attention(row, chip_of(row), step.groups), chip_of(row)) <= row.latency_us, row


def test_no_measured_gemm_beats_the_bound_unless_its_weights_are_in_the_l2() -> None:
    """Up to five copies of the weights were timed in turn: weights under a fifth of the L2 are not read from memory."""
    for row in timings("gemm"):
        chip, dtype = chip_of(row), dtypes.get_dtype(FORMATS[row.dtype])
        linear = Linear(name="gemm", in_features=float(row.k), out_features=float(row.n), dtype=dtype)
        x = Tensor(name="x", elements=float(row.m) * row.k, dtype=dtype)
        y = Tensor(name="y", elements=float(row.m) * row.n, dtype=dtypes.get_dtype("bf16"))
        operator = linear.operator(x, float(row.m), (whole(y),))
        assert chip.l2_bytes is not None
        if row.k * row.n * dtype.bytes > chip.l2_bytes / 5:
            assert bound_us(operator, chip) <= row.latency_us, row
