"""Memory-bound work: norms, activations, rotations, residual sums, conversions, look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.ir import Count, Kind, Operator
from llmviewer.kernels.family import Constant, Constants, Family

#: A tensor stays in the L2 up to this share of it; one as large as the L2 is evicted before it is read again.
RESIDENT = 0.75
#: Units of a chip that publishes none: those of an A100.
UNITS = 108.0
#: Sorts of elementwise work by a word of the operator's name, the one that sets a fused kernel's time first.
WORDS = (("rope", "rope"), ("act", "act"), ("sigmoid", "act"), ("gate", "act"), ("quantize", "quantize"))


def rates(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, and the slowest of three: bytes through the memory or L2; a row through one unit; a cost per row.

    Kernels give each row (token) to one block: fewer rows than units leave bandwidth unused, and every row costs a
    launch of a block.  What the kernel before wrote is still in the L2 where it is small, so its reading may be faster
    than memory; the whole is never faster than the data sheet's roofline.
    """
    sheet = ideal(operator, chip)
    moved, floor = np.maximum(operator.traffic_bytes, 1.0), constants["floor"] * 1e-6
    share = np.maximum(operator.output_shape[0], 1.0) / (UNITS if chip.units is None else chip.units)
    reached = np.minimum(_reached(moved, chip, constants), constants["unit"] * np.minimum(share, 1.0))
    sheet_s = moved / sheet.memory_bytes_per_s
    seconds = np.maximum(sheet_s / reached, share * (constants["row"] * 1e-9))
    return replace(
        sheet,
        memory_bytes_per_s=moved / np.maximum(seconds, sheet_s - floor),
        l2_bytes_per_s=None,
        fixed_s=floor,
    )


def _reached(moved: Count, chip: Chip, constants: Constants) -> Count:
    """Share of the memory bandwidth, more where all of it stays in the L2."""
    memory = constants["memory"]
    if chip.l2_bytes is None:
        return memory
    gain = memory * (constants["warm"] - 1.0)
    slope = gain / (1.0 - RESIDENT)
    kept = np.minimum((memory + slope) - moved * (slope / chip.l2_bytes), memory + gain)
    return np.maximum(kept, memory)


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Rows and elements of a row."""
    rows, *others = operator.output_shape
    return {"rows": rows, "width": others[-1] if others else 1.0}


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
        Constant(
            name="unit",
            unit="1",
            meaning="what one unit moves, in shares of bandwidth / units",
            start=1.5, low=0.05, high=20.0,
        ),
        Constant(name="row", unit="ns", meaning="a row on one unit, however short", start=30.0, low=0.0, high=2000.0),
    ),
    rates=rates,
    covers=covers,
    variant=variant,
    nearest={
        "softmax": ("norm",), "conv": ("act",), "recurrence": ("act",), "copy": ("add",), "rope": ("act",),
        "act": ("add",), "add": ("act",), "norm": ("add",), "embedding": ("add",), "quantize": ("add",),
    },
)  # fmt: skip
