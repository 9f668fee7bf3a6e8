"""The last-level cache (L2): which data it still holds when they are read again, and how fast it reads them."""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.hardware.chip import Chip
from llmviewer.timing.kernels.clock import units_and_clock

#: Generations with an L2 of two partitions, each caching the reads of its own SMs (A100 and H100 white papers).
PARTITIONED = frozenset(("ampere", "hopper", "blackwell"))
#: Data over the L2's size up to which all of it is held, and from which nothing is, since data that are read in a cycle
#: evict one another before their turn: of one piece (L40S, RTX PRO 6000), and of two partitions.
WHOLE, HALVES = (1.0, 1.2), (0.5, 1.0)
#: Bytes that a unit reads per clock (5 to 6 TB/s of an L40S), and rate over device memory below which no L2 is.
UNIT_BYTES_PER_CLOCK, MIN_SPEEDUP = 16.0, 1.5


def held_share(data: Count, chip: Chip) -> Count:
    """Share of `data` bytes, read once per cycle, that the L2 holds from one cycle to the next."""
    if chip.l2_bytes is None:
        return 0.0 * data
    full, none = HALVES if chip.generation in PARTITIONED else WHOLE
    share: Count = np.clip((none - data / chip.l2_bytes) / (none - full), 0.0, 1.0)
    return share


def rate(chip: Chip) -> Count:
    """Byte/s that the units read from the L2."""
    units, clock = units_and_clock(chip)
    fastest: Count = np.maximum(units * clock * UNIT_BYTES_PER_CLOCK, MIN_SPEEDUP * chip.bandwidth_bytes_per_s)
    return fastest
