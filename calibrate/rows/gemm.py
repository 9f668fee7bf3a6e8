"""Operators for rows of measured GEMMs: number formats, and weights that stay in L2 between calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.table import Table
from llmviewer.core import dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Place, Tensor
from llmviewer.formats.linear import Format, weight_access, with_formats
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape, Linear
from llmviewer.timing.kernels.experts import PARTITIONED_L2

if TYPE_CHECKING:
    import pandas as pd

#: One scale per 128 x 128 weights, and one per 128 input elements (DeepSeek-V3, arXiv 2412.19437).
FP8_BLOCK = (
    dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128"),
    dtypes.scaled("fp8", 8, group=128.0, scale_bits=32, name="fp8-1x128"),
)
#: aiconfigurator's names for GEMMs with 16-bit inputs and narrow weights -> weight format.
WEIGHT_ONLY = {"int8_wo": dtypes.get_dtype("int8"), "int4_wo": dtypes.grouped_int(4)}
#: Copies of the weights that aiconfigurator rotates through: if all fit, they stay in L2.
AICONFIGURATOR_COPIES = 5.0


def _gemm(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operators of one linear layer, or of `active` of `experts` experts.

    Timings of 8-bit rows by others include the input conversion, which is one of the GEMM's constants.
    """
    m, n, k = (group[name].to_numpy(dtype=np.float64) for name in "mnk")
    narrow = _narrow_format(first)
    wide = dtypes.get_dtype("bf16") if narrow else _plain_dtype(str(first["dtype"]))
    x = Tensor(name="x", elements=m * k, dtype=wide)
    experts = float(_column_or(first, "experts", 1.0))
    active = group["active"].to_numpy(dtype=np.float64) if experts > 1.0 else 1.0
    linear = Linear(name="gemm", in_features=k, out_features=n, dtype=wide, experts=experts)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, m, active=active),))
    if narrow is not None:
        block = with_formats(block, lambda _: narrow)
    product = block.operators[-1]
    assert isinstance(product.shape, GemmShape)
    if narrow is not None and narrow.activations is not None and str(first.get("source", "")) != "llmviewer":
        product = replace(product, shape=replace(product.shape, converts=1.0))
    return (_with_warm_weights(product, chip) if str(first.get("source", "")) == "aiconfigurator" else product,)


def _with_warm_weights(product: Operator, chip: Chip) -> Operator:
    """The GEMM with its weights in L2 if all copies of the measurement's rotation fit there."""
    if chip.l2_bytes is None:
        return product
    weights = weight_access(product)
    capacity_bytes = chip.l2_bytes * (0.5 if chip.generation in PARTITIONED_L2 else 1.0)
    warm = np.where(AICONFIGURATOR_COPIES * weights.elements * weights.tensor.dtype.bytes <= capacity_bytes, 1.0, 0.0)
    others = tuple(access for access in product.reads if access is not weights)
    cold = Access(weights.tensor, weights.elements * (1.0 - warm))
    return replace(product, reads=(*others, cold, Access(weights.tensor.at(Place.L2), weights.elements * warm)))


def _column_or(first: Any, name: str, default: float) -> float:
    """Value of an optional column, or `default` if it is absent or empty."""
    value = float(first.get(name, np.nan))
    return value if np.isfinite(value) else default


def _plain_dtype(dtype: str) -> Dtype:
    """Dtype of a GEMM without input conversion; tf32 values are stored in 32 bits."""
    return Dtype(name="tf32", bits=32, compute="tf32") if dtype == "tf32" else dtypes.get_dtype(dtype)


def _narrow_format(first: Any) -> Format | None:
    dtype = str(first["dtype"])
    if dtype == "fp8_block":
        return Format(weights=FP8_BLOCK[0], activations=FP8_BLOCK[1])
    if dtype in WEIGHT_ONLY:
        return Format(weights=WEIGHT_ONLY[dtype])
    if dtype == "w4a16":
        group = _column_or(first, "group", 0.0)
        if group < 1.0:
            raise UserError("rows of w4a16 without `group`, the number of weights per scale")
        return Format(weights=dtypes.grouped_int(4, group=int(group), zero_point_bits=16.0))
    if dtype == "tf32":
        return None
    named = dtypes.get_dtype(dtype)
    return Format(weights=named, activations=named) if named.bits < 16 else None


def _inactive_experts(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    if "experts" not in rows.columns:
        return []
    active = rows["active"] if "active" in rows.columns else np.nan
    several = rows["experts"] > 1.0
    return [(several & ~(active <= rows["experts"]), "experts without `active`, the number of them that run")]


GEMM = Table(
    shape=("m", "n", "k"),
    formula=("dtype", "experts", "group"),
    needed=("dtype",),
    build=_gemm,
    contradictions=_inactive_experts,
)
