"""Memory-bound work: norms, activations, rotations, residual sums, conversions, look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.ir import Count, Operator
from llmviewer.kernels.family import Constant, Constants, Family


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor and a share of the bandwidth."""
    sheet = ideal(operator, chip)
    return replace(
        sheet,
        memory_bytes_per_s=sheet.memory_bytes_per_s * constants["memory"],
        l2_bytes_per_s=None,
        fixed_s=constants["floor"] * 1e-6,
    )


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Rows and elements of a row."""
    rows, *others = operator.output_shape
    return {"rows": rows, "width": others[-1] if others else 1.0}


FAMILY = Family(
    name="streaming",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=2.0, low=0.0, high=100.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.8, low=0.05, high=1.0),
    ),
    rates=rates,
    covers=covers,
    variant=lambda operator: operator.kind.value,
)
