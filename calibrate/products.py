"""Rows of measured matrix products -> operators: number formats, and weights that a measurement finds in the L2."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import dtypes
from llmviewer.chip import Chip
from llmviewer.formats.linear import Format, matrix, with_formats
from llmviewer.ir import Access, Block, Operator, Place, Tensor
from llmviewer.ops.gemm import Linear

if TYPE_CHECKING:
    import pandas as pd

#: Weights with one scale per 128 x 128 block, inputs with one per 128 elements (DeepSeek-V3, arXiv 2412.19437).
FP8_BLOCK = (
    dtypes.scaled("fp8", 8, group=128.0 * 128.0, scale_bits=32, name="fp8-128x128"),
    dtypes.scaled("fp8", 8, group=128.0, scale_bits=32, name="fp8-1x128"),
)
#: Copies of the weights that aiconfigurator runs over in turn: smaller ones stay in the L2.
COPIES = 5.0
#: Generations whose L2 is two partitions that each hold what their own units read (A100 and H100 white papers).
HALVED_L2 = frozenset(("ampere", "hopper", "blackwell"))


def gemm(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """One linear layer.  Rows of 8 bit hold the conversion of their input: it is among the product's constants."""
    m, n, k = (group[name].to_numpy(dtype=np.float64) for name in "mnk")
    low = _low(str(first["dtype"]))
    wide = dtypes.named("bf16") if low else dtypes.named(str(first["dtype"]))
    x = Tensor(name="x", elements=m * k, dtype=wide)
    linear = Linear(name="gemm", in_features=k, out_features=n, dtype=wide)  # type: ignore[arg-type]
    block = Block(name="row", operators=(linear.operator(x, m),))
    if low is not None:
        block = with_formats(block, lambda _: low)
    product = block.operators[-1]
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


def _low(dtype: str) -> Format | None:
    if dtype == "fp8_block":
        return Format(weights=FP8_BLOCK[0], activations=FP8_BLOCK[1])
    named = dtypes.named(dtype)
    return Format(weights=named, activations=named) if named.bits < 16 else None
