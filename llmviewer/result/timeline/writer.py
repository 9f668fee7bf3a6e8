"""Writes the events of one forward pass on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from llmviewer.result.timeline.event import COMPUTE, ENGINE, Arrow, Event
from llmviewer.result.timeline.unrolled import EngineTerms, KernelRun, LayerRun, UnrolledPass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlacement:
    """Name and position of a pass.  start: earliest start [s].  share: fraction of the pass that runs.

    sends, receives: arrows of the whole pass, which may run on several pipeline stages.
    """

    name: str
    start: float
    share: float = 1.0
    pool: str = ""
    sends: tuple[Arrow, ...] = ()
    receives: tuple[Arrow, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class PassWriter:
    """Writes the events of one device in one pass.

    clock: start of the next kernel [s].  end: end of the pass [s]; no event exceeds it by rounding.
    """

    events: list[Event]
    event: partial[Event]
    share: float
    clock: float
    end: float

    def write(self, unrolled: UnrolledPass, whole: partial[Event]) -> None:
        """Add the events of a pass, its engine time and its layers.  whole: the event of the pass without its times."""
        self.events.append(whole(kind="pass", start_s=self.clock, end_s=self.end, track=COMPUTE))
        self._engine(unrolled.before)
        for section in unrolled.sections:
            self._section(section)
        self._engine(unrolled.after)

    def _section(self, section: LayerRun) -> None:
        start = self.clock
        whole = (start, min(start + section.seconds * self.share, self.end))
        layer = {} if section.number is None else {"layer": section.number}
        self._add(section.name, "layer", whole, COMPUTE, layer)
        self._engine(section.before)
        for kernel in section.kernels:
            if not kernel.copies:
                self._engine(kernel.before)
                begin, self.clock = self.clock, min(self.clock + kernel.seconds * self.share, whole[1])
                self._kernel(kernel, (begin, self.clock), kernel.track, layer)
        for track in dict.fromkeys(name for kernel in section.kernels for name in kernel.copies):
            self._copies([kernel for kernel in section.kernels if track in kernel.copies], track, whole, layer)
        self.clock = whole[1]

    def _copies(
        self, copies: list[KernelRun], track: str, whole: tuple[float, float], layer: Mapping[str, object]
    ) -> None:
        """Add the copies of one track, one after another within the layer."""
        clock, end = whole
        taken = sum(kernel.copies[track] for kernel in copies)
        for kernel in copies:
            begin, clock = clock, min(clock + kernel.copies[track] * min(self.share, (end - whole[0]) / taken), end)
            self._kernel(kernel, (begin, clock), track, layer)

    def _kernel(self, kernel: KernelRun, when: tuple[float, float], track: str, layer: Mapping[str, object]) -> None:
        counts = kernel.counts
        self._add(str(counts["name"]), str(counts["kind"]), when, track, {**counts, **layer})

    def _engine(self, terms: EngineTerms) -> None:
        for name, seconds in terms:
            begin, self.clock = self.clock, min(self.clock + seconds * self.share, self.end)
            self._add(name, "engine", (begin, self.clock), ENGINE, {})

    def _add(self, name: str, kind: str, when: tuple[float, float], track: str, facts: Mapping[str, object]) -> None:
        start, end = when
        self.events.append(self.event(name=name, kind=kind, start_s=start, end_s=end, track=track, facts=facts))
