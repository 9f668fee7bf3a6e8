"""The clock that kernels of vectors and copies run at, and the units that work."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.hardware.chip import Chip

#: Of a chip that publishes none [Hz].
UNKNOWN_HZ = 1.7e9
#: Units of an A100, and what each gets of its memory bandwidth per clock [byte]; an H100's 132 get 12.8.
UNITS, BYTES_PER_CLOCK = 108.0, 13.4
#: A unit that takes a tile or a row as a multiprocessor does (or a core of a processor) multiplies at most so fast [16
#: bit, FLOP/s], and a chip has at most so many: the core of a TPU v5e does 197 TFLOP/s, an SM of a B200 15; a Cerebras
#: has 900,000.  Chips of others count as UNITS.
FASTEST_UNIT, MOST_UNITS = 50e12, 1024.0


def clock_hz(chip: Chip) -> Count:
    """The boost clock of the vector units."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    return UNKNOWN_HZ if clock is None else clock


def resembles(chip: Chip) -> bool:
    """Whether the chip's units are known, and each takes a tile or a row as a multiprocessor does."""
    if chip.units is None or np.max(chip.units) > MOST_UNITS:
        return False
    rates = chip.matrix_flops_per_s
    return all(np.max(rates[name] / chip.units) <= FASTEST_UNIT for name in ("bf16", "fp16") if name in rates)


@lru_cache(maxsize=64)
def units_of(chip: Chip) -> Count:
    """Units that work side by side; an A100's where the chip's are unknown or of another kind."""
    return chip.units if chip.units is not None and resembles(chip) else UNITS


@lru_cache(maxsize=64)
def working(chip: Chip) -> tuple[Count, Count]:
    """(units, clocks per second of each); of a chip that does not say, those with which it resembles an A100."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    if clock is None or not resembles(chip):
        return UNITS, chip.bandwidth_bytes_per_s / (UNITS * BYTES_PER_CLOCK)
    return units_of(chip), clock
