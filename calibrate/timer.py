"""Time one kernel: warm up, take at least twenty samples, report their spread.

A sample is a sequence of calls that rotate through copies of the inputs; together the copies are larger than twice the
last-level cache, so that every call reads its weights from memory, like a layer of a real model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from llmviewer.core.frozen import frozen

#: Rotating copies are together larger than this multiple of the last-level cache.
CACHE_MULTIPLE = 2.0
#: Largest interquartile range / median of a stable time.
MAX_SPREAD = 0.10
#: Most copies of the inputs; each is a view of one allocation, and more are not worth their setup time.
MAX_COPIES = 4096
#: Most calls of one sample, so that its CUDA graph launches quickly.
MAX_CALLS = 512


@frozen
class PreparedKernel:
    """A kernel ready to run.

    run: runs it on a copy, by number.  copies: number of copies.  rotated_bytes: bytes of all copies; infinite if
    nothing needs to be cold.  graph: whether its calls are captured in a CUDA graph, without launch gaps.
    context: context manager that is active while it runs (a backend, a precision).
    """

    run: Callable[[int], object]
    copies: int = 1
    rotated_bytes: float = math.inf
    graph: bool = True
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


@frozen
class Limits:
    """Limits of the measurement of one kernel.

    samples: minimum number of samples; max_samples: maximum, for unstable times.  sample_s: length of one sample, long
    enough for the resolution of the clock.  warmup_s: before the first sample.  settle_s: time of discarded samples,
    until power and clock are those of sustained work.  max_s: a kernel whose samples would take longer is left out.
    max_spread: largest interquartile range / median of a stable time.  power_s: time of further samples during which
    the board's energy is counted; 0.0: none.
    """

    samples: int = 20
    max_samples: int = 40
    sample_s: float = 1e-3
    warmup_s: float = 5e-3
    settle_s: float = 0.0
    max_s: float = math.inf
    max_spread: float = MAX_SPREAD
    power_s: float = 0.0


class TooLongError(Exception):
    """Raised when the samples would take longer than the time left."""


@frozen
class DeviceReading:
    """Clock [MHz] and power [W] of the device under load; None if not reported.

    power_s: time over which the power is the mean [s]; 0.0 for what the driver reports after the last sample.
    """

    clock_mhz: float | None = None
    power_w: float | None = None
    power_s: float = 0.0


@frozen
class Samples:
    """Samples of one kernel [us per call].  timed: graph, events or clock.  settled_s: run time before the first."""

    samples_us: tuple[float, ...]
    calls: int
    timed: str
    reading: DeviceReading
    settled_s: float = 0.0
    max_spread: float = MAX_SPREAD

    @property
    def latency_us(self) -> float:
        """Median time of a call [us]."""
        return float(np.median(self.samples_us))

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        return spread(self.samples_us)

    @property
    def stable(self) -> bool:
        """Whether the spread is small enough for a fit."""
        return self.spread <= self.max_spread


class Stopwatch(Protocol):
    """Times calls on a device.  cache_bytes: size of its last-level cache."""

    cache_bytes: float

    def prepare(self, kernel: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        """Return the timing method, and a function that runs `calls` calls and returns their time [s]."""
        ...

    def reading(self, sample: Callable[[], float], power_s: float = 0.0) -> DeviceReading:
        """Clock and power, read during or right after a sample; power_s: over so many seconds of samples."""
        ...


def spread(samples: tuple[float, ...] | list[float]) -> float:
    """Interquartile range / median; infinite for a median of zero."""
    low, middle, high = np.percentile(samples, (25.0, 50.0, 75.0))
    return float((high - low) / middle) if middle > 0.0 else math.inf


def copies(each_bytes: float, cache_bytes: float) -> int:
    """Fewest copies together larger than CACHE_MULTIPLE times the cache, at most MAX_COPIES."""
    return min(MAX_COPIES, math.floor(CACHE_MULTIPLE * cache_bytes / max(each_bytes, 1.0)) + 1)


def is_cold(kernel: PreparedKernel, stopwatch: Stopwatch) -> bool:
    """Whether rotation through the copies leaves none of them in the cache."""
    return kernel.rotated_bytes > CACHE_MULTIPLE * stopwatch.cache_bytes


def measure(kernel: PreparedKernel, stopwatch: Stopwatch, limits: Limits) -> Samples:
    """Time a kernel.  Raises TooLongError if it would take longer than limits.max_s."""
    with kernel.context():
        once_s = _warm_up(kernel, stopwatch, limits)
        calls = _calls(kernel, stopwatch, limits, once_s)
        timed, sample = stopwatch.prepare(kernel, calls)
        sample()
        settled_s = _settle(sample, limits.settle_s)
        times = [sample() for _ in range(limits.samples)]
        while spread(times) > limits.max_spread and len(times) < limits.max_samples and sum(times) < limits.max_s:
            times.append(sample())
        reading = stopwatch.reading(sample, limits.power_s)
    per_call = tuple(t / calls * 1e6 for t in times)
    return Samples(
        samples_us=per_call, calls=calls, timed=timed, reading=reading, settled_s=settled_s,
        max_spread=limits.max_spread,
    )  # fmt: skip


def _settle(sample: Callable[[], float], settle_s: float) -> float:
    """Discard samples for settle_s seconds; return the time it took [s].

    Under sustained compute a card exceeds its power limit, and its clock falls within some tenths of a second.
    """
    started_at = time.monotonic()
    while time.monotonic() - started_at < settle_s:
        sample()
    return settle_s and time.monotonic() - started_at


def _warm_up(kernel: PreparedKernel, stopwatch: Stopwatch, limits: Limits) -> float:
    """Time of one call [s] after the first ones, which compile, allocate and raise the clocks."""
    started_at = time.monotonic()
    _, single = stopwatch.prepare(kernel, 1)
    first_s = single()
    if first_s * 3.0 > limits.max_s:
        raise TooLongError
    seconds = [single()]
    while sum(seconds) < limits.warmup_s and time.monotonic() - started_at < 4.0 * limits.warmup_s:
        seconds.append(single())
    once_s = min(seconds)
    if once_s * (limits.samples + 1) > limits.max_s:
        raise TooLongError
    return max(once_s, 1e-9)


def _calls(kernel: PreparedKernel, stopwatch: Stopwatch, limits: Limits, once_s: float) -> int:
    """Calls per sample: enough for sample_s, but no copy twice if all copies together fit the cache."""
    calls = min(MAX_CALLS, math.ceil(limits.sample_s / once_s))
    if kernel.copies > 1 and not is_cold(kernel, stopwatch):
        calls = min(calls, kernel.copies)
    return max(1, calls)
