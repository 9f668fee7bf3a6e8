"""Forward passes of a recording: which kernels each has, by the marks of the engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from llmviewer.calibrate.diagnosis.annotation import Work, work_of
from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording

#: Marks of a pass that do not state its work: torch.profiler's schedule.
PLAIN = re.compile(r"ProfilerStep")
#: Marks of passes of a draft model beside those of the model.
DRAFT = re.compile(r"DRAFT")
#: Before the first mark.
OUTSIDE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
