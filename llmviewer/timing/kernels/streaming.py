"""Memory-bound work: norms, activations, rotations, residual sums, conversions, look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Kind, Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing.efficiency import Rates, ideal
from llmviewer.timing.kernels.clock import working
from llmviewer.timing.kernels.family import Constant, Constants, Family

#: A tensor stays in the L2 up to this share of it; one as large as the L2 is evicted before it is read again.
RESIDENT = 0.75
#: Sorts of elementwise work by a word of the operator's name, the one that sets a fused kernel's time first.
WORDS = (("rope", "rope"), ("act", "act"), ("sigmoid", "act"), ("gate", "act"), ("quantize", "quantize"))

#: Kinds whose work is dealt to the units by channels or heads, not by tokens: a single token keeps all of them busy.
BY_CHANNEL = (Kind.CONV, Kind.RECURRENCE, Kind.ATTENTION)


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, and the slowest of four: bytes through the memory, through the units at work, a row's cost, its length.

    Most kernels give each row (token) to one block: fewer rows than units leave bandwidth unused, every row costs a
    launch of a block, and the block goes along it however few rows there are.  A unit keeps only so many bytes in
    flight, so what it moves goes by its clock, not by the memory behind it.  What the kernel before wrote is still in
    the L2 where it is small, so its reading may be faster than memory; the whole is never faster than the data sheet's
    roofline.
    """
    sheet = ideal(operator, chip)
    moved, floor = np.maximum(operator.traffic_bytes, 1.0), constants["floor"] * 1e-6
    units, clock = working(chip)
    rows = np.maximum(_rows(operator), 1.0)
    all_units = constants["spread"] or operator.kind in BY_CHANNEL
    by_units = np.minimum(rows * (units if all_units else 1.0), units) * (constants["unit"] * clock)
    reached = np.minimum(by_units, sheet.memory_bytes_per_s * constants["memory"])
    reached = reached * _gain(moved, chip, constants["warm"])
    seconds = np.maximum(moved / reached, rows * (constants["row"] * 1e-9 / units))
    if constants["along"] > 0.0 and operator.kind not in BY_CHANNEL:
        seconds = np.maximum(seconds, _width(operator) * (constants["along"] / clock))
    if constants["memory"] * constants["warm"] > 1.0:
        seconds = np.maximum(seconds, moved / sheet.memory_bytes_per_s - floor)
    return replace(sheet, memory_bytes_per_s=moved / seconds, l2_bytes_per_s=None, fixed_s=floor)


def _gain(moved: Count, chip: Chip, warm: float) -> Count:
    """How much faster it goes where all of it stays in the L2."""
    if chip.l2_bytes is None:
        return 1.0
    slope = (warm - 1.0) / (1.0 - RESIDENT)
    kept = np.minimum((1.0 + slope) - moved * (slope / chip.l2_bytes), warm)
    return np.maximum(kept, 1.0)


def _rows(operator: Operator) -> Count:
    """Rows that blocks of threads take: tokens; of scores those of every head."""
    rows, *others = operator.output_shape
    for count in others[:-1]:
        rows = rows * count
    return rows


def _width(operator: Operator) -> Count:
    """Elements of a row."""
    return operator.output_shape[-1] if len(operator.output_shape) > 1 else 1.0


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Rows and elements of a row."""
    return {"rows": _rows(operator), "width": _width(operator)}


def variant(operator: Operator) -> str:
    """Sort of work: `norm`, `embedding` ... by kind; elementwise kernels `rope`, `act`, `quantize`, `add` by name.

    A norm that also adds or quantizes is a norm: it holds whole rows.  What no word names streams as a sum does.
    """
    if operator.kind is not Kind.ELEMENTWISE:
        return str(operator.kind.value)
    return next((sort for word, sort in WORDS if word in operator.name), "add")


FAMILY = Family(
    name="streaming",
    constants=(
        Constant(name="floor", unit="us", meaning="shortest kernel", start=2.0, low=0.0, high=100.0),
        Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.8, low=0.05, high=1.0),
        Constant(name="warm", unit="1", meaning="times as fast where the L2 holds it", start=1.3, low=1.0, high=4.0),
        Constant(name="unit", unit="byte/cycle", meaning="what one unit moves", start=5.0, low=0.5, high=200.0),
        Constant(
            name="spread", unit="1", meaning="1: a row is spread over all units, 0: it is one unit's",
            start=0.0, low=0.0, high=1.0, choices=(0.0, 1.0),
        ),
        Constant(name="row", unit="ns", meaning="a row on one unit, however short", start=30.0, low=0.0, high=2000.0),
        Constant(name="along", unit="cycle", meaning="each element of that row", start=2.0, low=0.0, high=90.0),
    ),
    rates=rates,
    covers=covers,
    variant=variant,
    nearest={
        "softmax": ("norm",), "conv": ("act",), "recurrence": ("act",), "copy": ("add",), "rope": ("act",),
        "act": ("add",), "add": ("act",), "norm": ("add",), "embedding": ("add",), "quantize": ("add",),
    },
)  # fmt: skip
