"""Clock and number of the units that run a chip's vector kernels and copies."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.hardware.chip import Chip

#: Clock of chips that publish none [Hz].
DEFAULT_CLOCK_HZ = 1.7e9
#: Clock of an H100 SXM [Hz], on which times of single instructions and of a unit's tasks are stated.
H100_CLOCK_HZ = 1.98e9
#: Units of an A100, and its memory bandwidth per unit and clock [byte]; the 132 units of an H100 get 12.8.
A100_UNITS, A100_BYTES_PER_CLOCK = 108.0, 13.4
#: Limits for units that work on tiles or rows like a streaming multiprocessor or a CPU core: 16-bit FLOP/s of a unit,
#: and units of a chip.  The core of a TPU v5e does 197 TFLOP/s, an SM of a B200 15; a Cerebras has 900,000 units.
#: Chips beyond the limits count as A100_UNITS.
MAX_UNIT_FLOPS_PER_S, MAX_UNITS = 50e12, 1024.0


def clock_hz(chip: Chip) -> Count:
    """Boost clock of the vector units [Hz]."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    return DEFAULT_CLOCK_HZ if clock is None else clock


def h100_cycle(chip: Chip) -> Count:
    """Time of a cycle over that of an H100: factor on times in which a unit waits for its own instructions."""
    return H100_CLOCK_HZ / clock_hz(chip)


def has_sm_like_units(chip: Chip) -> bool:
    """Whether the chip's units are known and work on tiles or rows like streaming multiprocessors."""
    if chip.units is None or np.max(chip.units) > MAX_UNITS:
        return False
    rates = chip.real.matrix_flops_per_s
    return all(np.max(rates[name] / chip.units) <= MAX_UNIT_FLOPS_PER_S for name in ("bf16", "fp16") if name in rates)


@lru_cache(maxsize=64)
def units_of(chip: Chip) -> Count:
    """Units that work in parallel; an A100's if the chip's are unknown or of another kind."""
    return chip.units if chip.units is not None and has_sm_like_units(chip) else A100_UNITS


@lru_cache(maxsize=64)
def units_and_clock(chip: Chip) -> tuple[Count, Count]:
    """(units, clock [Hz]); if unknown or of another kind, an A100's units, clocked to match the chip's bandwidth."""
    clock = chip.clock_hz if chip.vector_clock_hz is None else chip.vector_clock_hz
    if clock is None or not has_sm_like_units(chip):
        return A100_UNITS, chip.real.bandwidth_bytes_per_s / (A100_UNITS * A100_BYTES_PER_CLOCK)
    return units_of(chip), clock
