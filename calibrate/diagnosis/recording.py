"""Kernels of a device as a profiler recorded them: busy time and gaps, and the forward passes that marks delimit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from llmviewer.calibrate.diagnosis.annotation import Work, work_of
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen


@frozen(eq=False)
class Timeline:
    """Times of the kernels of one pass in order of their start [s].

    gaps: idle time of the device before each kernel, 0 before the first.  hidden: part of each kernel during which a
    kernel that started before it runs on another stream.
    """

    seconds: Array
    gaps: Array
    hidden: Array

    @property
    def busy_s(self) -> float:
        """Time during which at least one kernel runs: the union of their intervals."""
        return float((self.seconds - self.hidden).sum())


def timeline(kernels: Sequence[Kernel]) -> Timeline:
    """The timeline of kernels in order of their start."""
    start = np.array([kernel.start_s for kernel in kernels])
    seconds = np.array([kernel.seconds for kernel in kernels])
    end = start + seconds
    reached = np.concatenate(([start[0]], np.maximum.accumulate(end)[:-1]))  # end of all kernels before each
    gaps = np.maximum(start - reached, 0.0)
    hidden = np.clip(reached - start, 0.0, seconds)
    hidden[0] = 0.0
    return Timeline(seconds=seconds, gaps=gaps, hidden=hidden)


#: Ends of kernels are rounded: to whole microseconds in old recordings.
ROUNDING_S = 1e-6
#: Longest time that a recording has [s]; times beyond are no times.
MOST_S = 1e12


@frozen
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


@frozen
class Mark:
    """A named span of time that the engine or the user marked.  on_device: its times are those of the kernels."""

    name: str
    start_s: float
    end_s: float
    on_device: bool = False


@frozen
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


@frozen
class KernelSum:
    """All runs of one kernel: their number and their seconds in total."""

    name: str
    count: int
    seconds: float


@frozen
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


#: Marks of a pass that do not state its work: torch.profiler's schedule.
PLAIN = re.compile(r"ProfilerStep")
#: Marks of passes of a draft model beside those of the model.
DRAFT = re.compile(r"DRAFT")
#: Before the first mark.
OUTSIDE = -1


@frozen(eq=False)
class RecordedPass:
    """Kernels of one forward pass in order of their start.

    work: None if no mark states it.  whole: False for kernels before the first mark or after the last one, which are
    the end of a pass and the beginning of another.  next_s: start of the pass that follows, None if none was recorded.
    """

    kernels: tuple[Kernel, ...]
    work: Work | None = None
    whole: bool = True
    next_s: float | None = None

    @property
    def start_s(self) -> float:
        """Start of the first kernel [s]."""
        return self.kernels[0].start_s

    @property
    def end_s(self) -> float:
        """End of the last kernel [s]."""
        return max(kernel.end_s for kernel in self.kernels)


def passes_of(recording: Recording) -> list[RecordedPass]:
    """The passes of a recording in order; one pass with all kernels if nothing is marked."""
    marks = _chosen(recording.marks)
    if not marks:
        return [RecordedPass(kernels=recording.kernels)]
    owners = _owners(recording.kernels, marks)
    found = []
    for number in sorted(set(owners)):
        own = tuple(kernel for kernel, owner in zip(recording.kernels, owners, strict=True) if owner == number)
        inside = 0 <= number < len(marks)
        found.append(RecordedPass(kernels=own, work=work_of(marks[number].name) if inside else None, whole=inside))
    following = [*(one.start_s if one.whole else None for one in found[1:]), None]
    return [replace(one, next_s=start) for one, start in zip(found, following, strict=True)]


def _chosen(marks: Sequence[Mark]) -> list[Mark]:
    """Marks of passes that do not overlap, in order: those that state most, on the device before those on the host."""
    stated = [(mark, work) for mark in marks if (work := work_of(mark.name)) is not None]
    stated = [one for one in stated if not DRAFT.search(one[0].name)] or stated
    ranked = sorted(stated, key=lambda item: (not item[1].is_exact, not item[0].on_device, item[0].start_s))
    if not ranked:
        plain = [mark for mark in marks if PLAIN.search(mark.name)]
        return sorted(_on_one_side(plain), key=lambda mark: mark.start_s)
    first, best = ranked[0][0], ranked[0][1].is_exact
    kept = [mark for mark, work in ranked if mark.on_device == first.on_device and work.is_exact == best]
    return _without_nested(sorted(kept, key=lambda mark: (mark.start_s, -mark.end_s)))


def _on_one_side(marks: Sequence[Mark]) -> list[Mark]:
    """Marks on the device if there are any, else those on the host."""
    return [mark for mark in marks if mark.on_device] or list(marks)


def _without_nested(marks: Sequence[Mark]) -> list[Mark]:
    kept: list[Mark] = []
    for mark in marks:
        if not kept or mark.start_s >= kept[-1].end_s or mark.end_s > kept[-1].end_s:
            kept.append(mark)
    return kept


def _owners(kernels: Sequence[Kernel], marks: Sequence[Mark]) -> list[int]:
    """Number of the mark that each kernel belongs to; OUTSIDE before the first, their number after the last.

    On the device by its own start, on the host by the time at which it was launched; kernels of a replayed graph,
    which are not linked to a launch, belong where the kernel before them does.
    """
    starts, ends = (np.array([getattr(mark, name) for mark in marks]) for name in ("start_s", "end_s"))
    on_device = marks[0].on_device
    times = [kernel.start_s if on_device else kernel.launch_s for kernel in kernels]
    known = next((time for time in times if time is not None), inf)
    owners: list[int] = []
    current = _at(known, starts, ends)
    if known == inf:  # nothing is linked: the marks' own times, which lie shortly before those of their kernels
        return [int(np.searchsorted(starts, kernel.start_s, side="right")) - 1 for kernel in kernels]
    for time in times:
        if time is not None:
            current = max(current, _at(time, starts, ends)) if owners else _at(time, starts, ends)
        owners.append(current)
    return owners


def _at(time: float, starts: np.ndarray, ends: np.ndarray) -> int:
    """Number of the mark at a time; between two marks that of the first, after the end of the last their number."""
    number = int(np.searchsorted(starts, time, side="right")) - 1
    return len(starts) if number == len(starts) - 1 and time > ends[-1] else number
