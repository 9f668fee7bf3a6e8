"""Kernels of a device as a profiler recorded them, with the marks that an engine set around its forward passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite

from llmviewer.core.errors import UserError

#: Ends of kernels are rounded: to whole microseconds in old recordings.
ROUNDING_S = 1e-6
#: Longest time that a recording has [s]; times beyond are no times.
MOST_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, copy or fill of a device's queue.

    start_s: on the clock of the recording.  stream: queue of the device.  launch_s: time of the call on the host that
    launched it, None if the profiler does not link them (kernels of a replayed graph).  operator: name of the
    framework's operator that launched it, such as aten::mm.  shape: rows, inputs and outputs of its matrix product.
    """

    name: str
    start_s: float
    seconds: float
    stream: int = 0
    launch_s: float | None = None
    operator: str = ""
    shape: tuple[float, float, float] | None = None

    @property
    def end_s(self) -> float:
        """Time at which the kernel ended [s]."""
        return self.start_s + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A named span of time that the engine or the user marked.  on_device: its times are those of the kernels."""

    name: str
    start_s: float
    end_s: float
    on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Kernels of one device in order of their start.

    program: the profiler.  device: name of the chip as the profiler gives it, "" if it does not.  on_host: the kernels
    are operators that ran on the processor.  world_size: processes of the run, 0 if the profiler does not tell.
    notes: what the recording lacks, in sentences for the user.
    """

    program: str
    kernels: tuple[Kernel, ...]
    marks: tuple[Mark, ...] = ()
    device: str = ""
    on_host: bool = False
    world_size: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSum:
    """All runs of one kernel: their number and their seconds in total."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Kernels of a run summed by name: a recording without times of single kernels."""

    program: str
    kernels: tuple[KernelSum, ...]
    device: str = ""
    notes: tuple[str, ...] = ()


def seconds(value: object, unit_s: float) -> float | None:
    """A time of a file [s]; None for what is none: a text that is no number, a list, null, an endless number."""
    try:
        time = float(value) * unit_s  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return time if isfinite(time) and abs(time) < MOST_S and not isinstance(value, bool) else None


def span(start: object, end: object, unit_s: float) -> tuple[float, float] | None:
    """Start and duration [s] of whole numbers of units in a file, exact also for large ones; None for what is none."""
    try:
        begin, length = int(start) * unit_s, (int(end) - int(start)) * unit_s  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return (begin, length) if abs(begin) < MOST_S and 0.0 <= length < MOST_S else None


def whole(value: object) -> int:
    """A number of a stream, a device or a process in a file; 0 for what is none."""
    try:
        return int(value) % 2**63  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0


def in_order(kernels: Iterable[Kernel]) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Kernels in order of their start, and a note of those whose times cannot be true.

    Kernels of one stream run one after another.  One that ends after the next one of another launch is cut where that
    begins: its duration is wrong, as by an overflow of a counter.  Kernels of one replayed graph may run side by side,
    and a kernel may begin while the one before it ends (programmatic dependent launch).
    """
    ordered = sorted(kernels, key=lambda kernel: (kernel.start_s, kernel.end_s))
    streams: dict[int, list[int]] = {}
    for at, kernel in enumerate(ordered):
        streams.setdefault(kernel.stream, []).append(at)
    cut = {at: start for own in streams.values() for at, start in _overlong(ordered, own)}
    for at, start_s in cut.items():
        ordered[at] = replace(ordered[at], seconds=max(start_s - ordered[at].start_s, 0.0))
    many = "1 kernel overlaps" if len(cut) == 1 else f"{len(cut):,} kernels overlap"
    note = f"{many} the following ones of the same stream, which cannot be: cut where the next one begins"
    return tuple(ordered), (note,) if cut else ()


def _overlong(kernels: list[Kernel], stream: list[int]) -> Iterable[tuple[int, float]]:
    """Places of kernels of a stream that end after the first kernel of the next launch, and the start of the next."""
    other = None  # the first kernel of the launch after that of the kernel at hand
    for at, following in reversed([*pairwise(stream)]):
        kernel, next_one = kernels[at], kernels[following]
        if kernel.launch_s is None or kernel.launch_s != next_one.launch_s:
            other = next_one
        if other is not None and other.end_s + ROUNDING_S < kernel.end_s:
            yield at, next_one.start_s


def kernel_sum(name: object, count: object, time: object, unit_s: float, number: int) -> KernelSum:
    """A row of a table of sums.  number: of the row.  Raises UserError for one without a count or a time."""
    runs, taken = seconds(count, 1.0), seconds(str(time).replace(",", ""), unit_s)
    if runs is None or taken is None or min(runs, taken) < 0.0:
        raise UserError(f"row {number} of the table of kernels has no count or no time")
    return KernelSum(name=str(name or ""), count=int(runs), seconds=taken)
