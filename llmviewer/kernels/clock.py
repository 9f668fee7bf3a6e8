"""The clock that kernels of vectors and copies run at, and the units that work."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmviewer.chip import Chip
from llmviewer.ir import Count

#: Of a chip that publishes none [Hz].
UNKNOWN_HZ = 1.7e9
#: Units of an A100, and what each gets of its memory bandwidth per clock [byte]; an H100's 132 get 12.8.
UNITS, BYTES_PER_CLOCK = 108.0, 13.4
#: Fewer units than this are not cores that take a row each (a TPU has one or two): they count as an A100's.
LEAST_UNITS = 8.0


def clock_hz(chip: Chip) -> Count:
    """The boost clock of the vector units."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    return UNKNOWN_HZ if clock is None else clock


@lru_cache(maxsize=64)
def working(chip: Chip) -> tuple[Count, Count]:
    """(units, clocks per second of each); of a chip that does not say, those with which it resembles an A100."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    if chip.units is None or clock is None or np.min(chip.units) < LEAST_UNITS:
        return UNITS, chip.bandwidth_bytes_per_s / (UNITS * BYTES_PER_CLOCK)
    return chip.units, clock
