"""Batched products without weights: of eager attention, one per sequence and head, and the scores of an indexer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
from llmviewer.timing.kernels.attention import quantities
from llmviewer.timing.kernels.family import Constant, Constants, Family
from llmviewer.timing.roofline import Rates, ideal


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A fixed floor, and constant fractions of peak and bandwidth."""
    sheet = ideal(operator, chip)
    return replace(
        sheet,
        matrix_flops_per_s=sheet.matrix_flops_per_s * constants["compute"],
        memory_bytes_per_s=sheet.memory_bytes_per_s * constants["memory"],
        l2_bytes_per_s=None,
        sharpness=2.0,
        fixed_s=constants["floor"] * 1e-6,
    )


def sizes(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Sizes of attention; none for an indexer, of which no table has rows."""
    return quantities(operator, chip) if isinstance(operator.shape, AttentionShape) else {}


FAMILY = Family(
    name="batched",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest product", start=4.0, low=0.0, high=200.0),
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.6, low=0.05, high=1.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.75, low=0.05, high=1.0),
    ),
    rates=rates,
    quantities=sizes,
    variant=lambda operator: operator.compute,
    unmeasured=True,
)
