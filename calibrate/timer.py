"""Timing one kernel: warm up, take at least twenty samples, say how far they lie apart.

A sample is a row of calls that take the kernel's copies of its inputs in turn; together the copies are larger than
twice the last cache, so that every call finds its weights in memory, as a layer of a real model does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

#: Rotating copies are together larger than this many caches.
CACHE_MULTIPLE = 2.0
#: Interquartile range over median beyond which a time is unstable.
MAX_SPREAD = 0.10
#: A copy is a view of one allocation; more of them cost more to make than they bring.
MAX_COPIES = 4096
#: Calls of one sample: what a CUDA graph holds without taking long to launch.
MAX_CALLS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedKernel:
    """A kernel ready to run.

    run: runs it on the copy of that number.  copies: how many there are.  rotated_bytes: bytes of all copies; infinite
    where nothing needs to be cold.  graph: whether its calls stand in a CUDA graph, without the host's gaps.
    context: what must hold while it runs (a backend, a precision).
    """

    run: Callable[[int], object]
    copies: int = 1
    rotated_bytes: float = math.inf
    graph: bool = True
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is measured.

    samples: at least; max_samples: where they lie apart.  sample_s: length of one sample, so that the clock's own
    error drowns.  warmup_s: before the first.  settle_s: of samples that are thrown away, until power and clock are
    those of lasting work.  max_s: a kernel whose samples would take longer is left out.
    max_spread: interquartile range over median beyond which a time is called unstable.
    """

    samples: int = 20
    max_samples: int = 40
    sample_s: float = 1e-3
    warmup_s: float = 5e-3
    settle_s: float = 0.0
    max_s: float = math.inf
    max_spread: float = MAX_SPREAD


class TooLongError(Exception):
    """The samples would take longer than there is time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What the device says of itself under load; None where it does not say.  clock [MHz], power [W]."""

    clock_mhz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of one kernel [us per call].  timed: graph, events or clock.  settled_s: it ran before the first one."""

    samples_us: tuple[float, ...]
    calls: int
    timed: str
    reading: DeviceReading
    settled_s: float = 0.0
    max_spread: float = MAX_SPREAD

    @property
    def latency_us(self) -> float:
        """The median."""
        return float(np.median(self.samples_us))

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        return spread(self.samples_us)

    @property
    def stable(self) -> bool:
        """Whether the samples lie close enough together to be fitted on."""
        return self.spread <= self.max_spread


class Stopwatch(Protocol):
    """What knows how to time calls on a device.  cache_bytes: of its last cache."""

    cache_bytes: float

    def prepare(self, work: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        """How it times, and a function that runs so many calls and gives their seconds."""
        ...

    def reading(self, sample: Callable[[], float]) -> DeviceReading:
        """Clock and power, read while the sample runs."""
        ...


def spread(samples: tuple[float, ...] | list[float]) -> float:
    """Interquartile range over median; infinite where the median is no time at all."""
    low, middle, high = np.percentile(samples, (25.0, 50.0, 75.0))
    return float((high - low) / middle) if middle > 0.0 else math.inf


def copies(each_bytes: float, cache_bytes: float) -> int:
    """The fewest copies of so many bytes that are together larger than CACHES caches, at most MOST_COPIES."""
    return min(MAX_COPIES, math.floor(CACHE_MULTIPLE * cache_bytes / max(each_bytes, 1.0)) + 1)


def is_cold(work: PreparedKernel, stopwatch: Stopwatch) -> bool:
    """Whether taking the copies in turn leaves none of them in the cache."""
    return work.rotated_bytes > CACHE_MULTIPLE * stopwatch.cache_bytes


def measure(work: PreparedKernel, stopwatch: Stopwatch, limits: Limits) -> Samples:
    """Time a kernel.  Raises TooLongError where limits.max_s would not do."""
    with work.context():
        once_s = _warm_up(work, stopwatch, limits)
        calls = _calls(work, stopwatch, limits, once_s)
        timed, sample = stopwatch.prepare(work, calls)
        sample()
        settled_s = _settle(sample, limits.settle_s)
        times = [sample() for _ in range(limits.samples)]
        while spread(times) > limits.max_spread and len(times) < limits.max_samples and sum(times) < limits.max_s:
            times.append(sample())
        reading = stopwatch.reading(sample)
    per_call = tuple(t / calls * 1e6 for t in times)
    return Samples(
        samples_us=per_call, calls=calls, timed=timed, reading=reading, settled_s=settled_s,
        max_spread=limits.max_spread,
    )  # fmt: skip


def _settle(sample: Callable[[], float], settle_s: float) -> float:
    """Samples thrown away for so long; how long it was.

    A card that computes draws more than it may keep up: its clock falls within some tenths of a second.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < settle_s:
        sample()
    return settle_s and time.monotonic() - begun


def _warm_up(work: PreparedKernel, stopwatch: Stopwatch, limits: Limits) -> float:
    """Seconds of one call after the first ones, which compile, allocate and wake the clocks."""
    begun = time.monotonic()
    _, single = stopwatch.prepare(work, 1)
    first_s = single()
    if first_s * 3.0 > limits.max_s:
        raise TooLongError
    seconds = [single()]
    while sum(seconds) < limits.warmup_s and time.monotonic() - begun < 4.0 * limits.warmup_s:
        seconds.append(single())
    once_s = min(seconds)
    if once_s * (limits.samples + 1) > limits.max_s:
        raise TooLongError
    return max(once_s, 1e-9)


def _calls(work: PreparedKernel, stopwatch: Stopwatch, limits: Limits, once_s: float) -> int:
    """Calls of one sample: enough for sample_s; no copy twice in a sample where all of them would fit the cache."""
    wanted = min(MAX_CALLS, math.ceil(limits.sample_s / once_s))
    if work.copies > 1 and not is_cold(work, stopwatch):
        wanted = min(wanted, work.copies)
    return max(1, wanted)
