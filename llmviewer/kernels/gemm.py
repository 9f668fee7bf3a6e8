"""Matrix products with weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.ir import Count, Operator, Role
from llmviewer.kernels.family import Constant, Constants, Family
from llmviewer.ops.gemm import GemmShape


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, fractions of peak and bandwidth, and a smooth maximum of the two."""
    sheet = ideal(operator, chip)
    return replace(
        sheet,
        matrix_flops_per_s=sheet.matrix_flops_per_s * constants["compute"],
        memory_bytes_per_s=sheet.memory_bytes_per_s * constants["memory"],
        l2_bytes_per_s=None,
        vector_flops_per_s=None,
        sharpness=constants["sharpness"],
        fixed_s=constants["floor"] * 1e-6,
    )


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Rows, columns and depth of the product."""
    shape = operator.shape
    assert isinstance(shape, GemmShape)
    return {"m": shape.m, "n": shape.n, "k": shape.k}


def variant(operator: Operator) -> str:
    """`bf16`, `fp8` ...; `w4a16` where weights are stored in fewer bits than they are multiplied in."""
    stored = next(a.tensor.dtype for a in operator.reads if a.tensor.role is Role.WEIGHT)
    return operator.compute if stored.compute == operator.compute else f"w{stored.bits:.0f}a16"


FAMILY = Family(
    name="gemm",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest product", start=3.0, low=0.0, high=200.0),
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.8, low=0.05, high=1.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.8, low=0.05, high=1.0),
        Constant(name="sharpness", unit="1", meaning="exponent of the maximum", start=2.0, low=1.0, high=20.0),
    ),
    rates=rates,
    covers=covers,
    variant=variant,
    twins={"bf16": ("fp16",), "fp16": ("bf16",)},
)
