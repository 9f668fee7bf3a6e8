"""Rows of measured matrix products -> operators: number formats, and weights that a measurement finds in the L2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core import dtypes
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Place, Tensor
from llmviewer.formats.linear import Format, matrix, with_formats
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape, Linear

if TYPE_CHECKING:
    import pandas as pd

#: Weights with one scale per 128 x 128 block, inputs with one per 128 elements (DeepSeek-V3, arXiv 2412.19437).
FP8_BLOCK = (
    dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128"),
    dtypes.scaled("fp8", 8, group=128.0, scale_bits=32, name="fp8-1x128"),
)
#: What aiconfigurator calls products of 16-bit inputs and narrow weights.
WEIGHTS_ALONE = {"int8_wo": dtypes.named("int8"), "int4_wo": dtypes.grouped_int(4)}
#: Copies of the weights that aiconfigurator runs over in turn: smaller ones stay in the L2.
COPIES = 5.0
#: Generations whose L2 is two partitions that each hold what their own units read (A100 and H100 white papers).
HALVED_L2 = frozenset(("ampere", "hopper", "blackwell"))


def gemm(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """One linear layer, or those of `active` of `experts` experts.

    Rows of 8 bit hold the conversion of their input: it is among the product's constants.
    """
    m, n, k = (group[name].to_numpy(dtype=np.float64) for name in "mnk")
    low = _low(first)
    wide = dtypes.named("bf16") if low else _wide(str(first["dtype"]))
    x = Tensor(name="x", elements=m * k, dtype=wide)
    experts = float(_given(first, "experts", 1.0))
    active = group["active"].to_numpy(dtype=np.float64) if experts > 1.0 else 1.0
    linear = Linear(name="gemm", in_features=k, out_features=n, dtype=wide, experts=experts)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, m, active=active),))
    if low is not None:
        block = with_formats(block, lambda _: low)
    product = block.operators[-1]
    assert isinstance(product.shape, GemmShape)
    if low is not None and low.activations is not None and str(first.get("source", "")) != "llmviewer":
        product = replace(product, shape=replace(product.shape, converts=1.0))
    return (_repeated(product, chip) if str(first.get("source", "")) == "aiconfigurator" else product,)


def _repeated(product: Operator, chip: Chip) -> Operator:
    """The product with the weights in the L2 where all the copies that the measurement takes in turn fit there."""
    if chip.l2_bytes is None:
        return product
    weights = matrix(product)
    room = chip.l2_bytes * (0.5 if chip.generation in HALVED_L2 else 1.0)
    warm = np.where(COPIES * weights.elements * weights.tensor.dtype.bytes <= room, 1.0, 0.0)
    others = tuple(access for access in product.reads if access is not weights)
    cold = Access(weights.tensor, weights.elements * (1.0 - warm))
    return replace(product, reads=(*others, cold, Access(weights.tensor.at(Place.L2), weights.elements * warm)))


def _given(first: Any, name: str, default: float) -> float:
    """A column that not every table has, and not every row fills."""
    value = float(first.get(name, np.nan))
    return value if np.isfinite(value) else default


def _wide(dtype: str) -> Dtype:
    """Of a product whose input nothing converts; tf32 rounds what is stored in 32 bits."""
    return Dtype(name="tf32", bits=32, compute="tf32") if dtype == "tf32" else dtypes.named(dtype)


def _low(first: Any) -> Format | None:
    dtype = str(first["dtype"])
    if dtype == "fp8_block":
        return Format(weights=FP8_BLOCK[0], activations=FP8_BLOCK[1])
    if dtype in WEIGHTS_ALONE:
        return Format(weights=WEIGHTS_ALONE[dtype])
    if dtype == "w4a16":
        group = _given(first, "group", 0.0)
        if group < 1.0:
            raise UserError("rows of w4a16 without `group`, the weights that share a scale")
        return Format(weights=dtypes.grouped_int(4, group=int(group), zero_point_bits=16.0))
    if dtype == "tf32":
        return None
    named = dtypes.named(dtype)
    return Format(weights=named, activations=named) if named.bits < 16 else None
