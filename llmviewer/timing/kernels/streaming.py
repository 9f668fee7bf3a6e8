"""Memory-bound kernels: norms, activations, rotary embeddings, residual sums, conversions, embedding look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, present
from llmviewer.core.ir import Operator, Place
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.formats.linear import QuantizeShape
from llmviewer.hardware.chip import Chip
from llmviewer.timing.kernels.family import Constant, Constants, Family
from llmviewer.timing.kernels.power import units_and_clock
from llmviewer.timing.roofline import Rates, ideal

#: Tensors up to this fraction of the L2 stay in it; one as large as the L2 is evicted before it is read again.
RESIDENT = 0.75
#: Variants of elementwise work by role; all other roles are priced like a sum.
VARIANT_BY_ROLE = {
    OperatorRole.ROPE: "rope",
    OperatorRole.ACTIVATION: "act",
    OperatorRole.QUANTIZE: "quantize",
}


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor plus the longest of four: bytes by memory, bytes by active units, cost of all rows, length of a row.

    Most kernels assign each row (token) to one thread block: with fewer rows than units bandwidth is unused, every row
    costs a block launch, and a block traverses its row however few rows there are.  A unit keeps a limited number of
    bytes in flight, so its throughput scales with its clock, not with memory bandwidth.  Small outputs of the previous
    kernel are still in the L2, so reading them may be faster than memory; the total is never faster than the data
    sheet's roofline.  Data that a row states to be in the L2, as repeated runs leave it, never reaches memory.
    """
    sheet = ideal(operator, chip)
    traffic, floor = np.maximum(operator.traffic_bytes, 1.0), constants["floor"] * 1e-6
    kept = operator.moved_bytes(Place.L2)
    moved = traffic + kept
    units, clock = units_and_clock(chip)
    rows = np.maximum(_rows(operator), 1.0)
    all_units = constants["spread"] or operator.kind.facts.by_channel
    by_units = np.minimum(rows * (units if all_units else 1.0), units) * (constants["unit"] * clock)
    reached = sheet.memory_bytes_per_s * constants["memory"]
    speedup = _l2_speedup(moved, chip, constants["warm"])
    seconds = np.maximum(moved / by_units, traffic / reached) / speedup
    if present(kept):
        seconds = np.maximum(seconds, traffic / (reached * speedup) + kept / (reached * constants["warm"]))
    seconds = np.maximum(seconds, rows * (constants["row"] * 1e-9 / units))
    if constants["along"] > 0.0 and not operator.kind.facts.by_channel:
        seconds = np.maximum(seconds, _width(operator) * (constants["along"] / clock))
    if constants["memory"] * constants["warm"] > 1.0:
        seconds = np.maximum(seconds, traffic / sheet.memory_bytes_per_s - floor)
    return replace(sheet, memory_bytes_per_s=traffic / seconds, l2_bytes_per_s=None, fixed_s=floor)


def _l2_speedup(moved: Count, chip: Chip, warm: float) -> Count:
    """Speed-up where the data stays in the L2."""
    if chip.l2_bytes is None:
        return 1.0
    slope = (warm - 1.0) / (1.0 - RESIDENT)
    kept = np.minimum((1.0 + slope) - moved * (slope / chip.l2_bytes), warm)
    return np.maximum(kept, 1.0)


def _rows(operator: Operator) -> Count:
    """Rows that are assigned to thread blocks: tokens; for scores, rows of every head."""
    rows, *others = operator.output_shape
    for count in others[:-1]:
        rows = rows * count
    return rows


def _width(operator: Operator) -> Count:
    """Number of elements of a row."""
    return operator.output_shape[-1] if len(operator.output_shape) > 1 else 1.0


def quantities(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Number of rows, and of elements per row."""
    return {"rows": _rows(operator), "width": _width(operator)}


def variant(operator: Operator) -> str:
    """The operator's kind (`norm`, `embedding` ...); by role `rope`, `act`, `quantize` or `add` if it is elementwise.

    A norm that also adds or quantizes is a norm, as it needs whole rows.  Unlisted elementwise work counts as `add`.
    """
    if operator.kind is not Kind.ELEMENTWISE:
        return str(operator.kind.value)
    role = operator.role
    if isinstance(operator.shape, QuantizeShape) and operator.shape.source in VARIANT_BY_ROLE:
        role = operator.shape.source  # priced like the kernel whose output it quantizes
    return VARIANT_BY_ROLE.get(role, "add")


FAMILY = Family(
    name="streaming",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=2.0, low=0.0, high=100.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.8, low=0.05, high=1.0),
        Constant(name="warm", unit="1", meaning="speed-up by data in the L2", start=1.3, low=1.0, high=16.0),
        Constant(
            name="unit", unit="byte/cycle", meaning="throughput of one unit", start=5.0, low=0.5, high=200.0,
            also=(1.0, 20.0),
        ),
        Constant(
            name="spread", unit="1", meaning="1: a row is spread over all units, 0: it is processed by one unit",
            start=0.0, low=0.0, high=1.0, choices=(0.0, 1.0),
        ),
        Constant(name="row", unit="ns", meaning="fixed time of a row on one unit", start=30.0, low=0.0, high=2000.0),
        Constant(name="along", unit="cycle", meaning="each element along a row", start=2.0, low=0.0, high=90.0),
    ),
    rates=rates,
    quantities=quantities,
    variant=variant,
    substitutes={
        "softmax": ("norm",), "conv": ("act",), "recurrence": ("act",), "copy": ("add",), "rope": ("act",),
        "act": ("quantize", "add"), "add": ("act", "quantize"), "norm": ("quantize", "add"),
        "embedding": ("quantize", "add"), "quantize": ("add",),
    },
)  # fmt: skip
