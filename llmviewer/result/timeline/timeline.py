"""The predicted timeline of a request: prefill and the first decode steps, pass by pass, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from llmviewer.analysis.analysis import Analysis
from llmviewer.result.describe import number
from llmviewer.result.stages import system_at, value_at
from llmviewer.result.timeline.traced import TimedPasses, TracedPasses, times
from llmviewer.result.timeline.unrolled import Kernel, Terms, TracedLayer, Unrolled
from llmviewer.serving.generation import PLAIN, Draft

#: Tracks: kernels with the passes and layers they stand in, and what the engine does between them.
COMPUTE, ENGINE = "compute", "engine"
#: The track of prefill and steps as a whole.
REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that takes time, from start_s to end_s after the request began [s].

    kind: step, pass, layer, engine, transfer, or that of an operator.  stage: of a pipeline, from 0; None: what is of
    no device.  machine: of several pools which.  track: events of one never overlap, but stand within each other.
    facts: counts of one device, as an OPERATOR object names them.
    """

    name: str
    kind: str
    start_s: float
    end_s: float
    track: str = REQUEST
    stage: int | None = None
    machine: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """By name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def timeline(analysis: Analysis, steps: int, point: int = 0) -> tuple[Event, ...]:
    """Prefill and the first `steps` decode steps (rounds, where something drafts) of one point; fewer where the answer
    is shorter.  Raises UserError for more events than anyone looks at.

    Every step takes its `time_s`, and begins where the one before ends.
    """
    plan = TracedPasses.of(analysis, steps, point)
    own = TimedPasses.of(analysis, plan.passes, point)
    drafts = [(draft, TimedPasses.of(drafting, plan.of_draft(draft), point)) for draft, drafting in analysis.drafts]
    laid = _Laid(analysis=analysis, own=own, drafts=drafts, point=point)
    laid.prefill(plan)
    laid.decode(plan)
    return tuple(sorted(laid.events, key=lambda event: (event.start_s, -event.end_s)))


@dataclass(slots=True, kw_only=True, eq=False)
class _Laid:
    """Events as they are laid out.  free: when each stage of each pool has done what it has begun [s]."""

    analysis: Analysis
    own: TimedPasses
    drafts: list[tuple[Draft, TimedPasses]]
    point: int
    events: list[Event] = field(default_factory=list)
    free: dict[tuple[str, int], float] = field(default_factory=dict)

    def prefill(self, plan: TracedPasses) -> None:
        """The prompts' passes, one behind the other through all stages; then those of drafts that keep a cache."""
        machine = "prefill" if self.transfer_s is not None else ""
        end = 0.0
        for priced in (self.own, *(priced for draft, priced in self.drafts if draft.caches)):
            of = "" if priced is self.own else f" of {priced.analysis.model.name}"
            start, end = end, end + float(priced.analysis.own_prefill_s[self.point])
            self.events.append(Event(name=f"prefill{of}", kind="step", start_s=start, end_s=end))
            for count, (at, share) in enumerate(plan.prefill, 1):
                name = f"prefill{of}" + (f", pass {count} of {len(plan.prefill)}" if len(plan.prefill) > 1 else "")
                self.passed(priced, at, _Drawn(name=name, start=start, share=share, machine=machine))
                start += value_at(priced.analysis.busiest_s, at) * share

    def decode(self, plan: TracedPasses) -> None:
        """Steps one behind the other."""
        start = float(self.analysis.prefill_s[self.point])
        if self.transfer_s is not None:
            end = start + self.transfer_s
            self.events.append(Event(name="the cache moves", kind="transfer", start_s=start, end_s=end))
            start = end
        generation = system_at(self.analysis, self.point).generation
        rounds = generation is not PLAIN and generation.branches is None
        facts = {"expected_tokens": number(value_at(generation.tokens, 0))} if rounds else {}
        for count, at in enumerate(plan.decode, 1):
            name = f"{'round' if rounds else 'decode step'} {count}"
            end = self._round(at, name, start, value_at(generation.extra_s, 0))
            facts |= {"time_s": end - start}
            self.events.append(Event(name=name, kind="step", start_s=start, end_s=end, facts=dict(facts)))
            start = end

    @property
    def transfer_s(self) -> float | None:
        """Of a cache from the machine that prefills to the one that decodes [s]; None where it is one."""
        found = self.analysis.times.facts().get("transfer_s") if self.analysis.running is not None else None
        return None if found is None else value_at(found, self.point)  # type: ignore[arg-type]

    def _round(self, at: int, name: str, start: float, extra_s: float) -> float:
        """Drafts, the model's own pass, what is no kernel; its end."""
        for draft, priced in self.drafts:
            often = list(times(at, value_at(draft.passes, self.point)))
            for count, (_, share) in enumerate(often, 1):
                said = f"draft {draft.name}" + (f", pass {count} of {len(often)}" if len(often) > 1 else "")
                self.passed(priced, at, _Drawn(name=said, start=start, share=share))
                start += value_at(priced.analysis.step_s, at) * share
        machine = "decode" if self.transfer_s is not None else ""
        step_s, several = value_at(self.analysis.step_s, at), self.own.in_flight
        for part in range(several):
            said = name if several == 1 else f"{name}, micro-batch {part + 1} of {several}"
            begin = start + step_s * part / several
            self.passed(self.own, at, _Drawn(name=said, start=begin, machine=machine))
        start += step_s
        if extra_s:
            self.events.append(
                Event(name="beside kernels", kind="engine", start_s=start, end_s=start + extra_s, track=ENGINE, stage=0)
            )
        return start + extra_s

    def passed(self, priced: TimedPasses, at: int, drawn: _Drawn) -> None:
        """A pass through all stages."""
        begin, facts = drawn.start, priced.facts(at)
        for stage, one in enumerate(priced.unrolled(at)):
            start = max(begin, self.free.get((drawn.machine, stage), 0.0))
            begin = start + one.seconds * drawn.share
            self.free[drawn.machine, stage] = begin
            line = _Line(
                events=self.events,
                event=partial(Event, stage=stage, machine=drawn.machine),
                share=drawn.share,
                clock=start,
                end=begin,
            )
            line.draw(one, drawn.name, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A pass to draw.  start: no sooner than [s].  share: of it."""

    name: str
    start: float
    share: float = 1.0
    machine: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """What one device runs in a pass.  clock: where the next kernel begins; end: of the pass, which rounding never
    passes [s]."""

    events: list[Event]
    event: partial[Event]
    share: float
    clock: float
    end: float

    def draw(self, one: Unrolled, name: str, facts: Mapping[str, object]) -> None:
        """A pass."""
        self._add(name, "pass", (self.clock, self.end), COMPUTE, facts)
        self._engine(one.before)
        for section in one.sections:
            self._section(section)
        self._engine(one.behind)

    def _section(self, section: TracedLayer) -> None:
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
        self, copies: list[Kernel], track: str, whole: tuple[float, float], layer: Mapping[str, object]
    ) -> None:
        """Copies of one track, one after another within the layer."""
        clock, end = whole
        taken = sum(kernel.copies[track] for kernel in copies)
        for kernel in copies:
            begin, clock = clock, min(clock + kernel.copies[track] * min(self.share, (end - whole[0]) / taken), end)
            self._kernel(kernel, (begin, clock), track, layer)

    def _kernel(self, kernel: Kernel, when: tuple[float, float], track: str, layer: Mapping[str, object]) -> None:
        counts = kernel.counts
        self._add(str(counts["name"]), str(counts["kind"]), when, track, {**counts, **layer})

    def _engine(self, terms: Terms) -> None:
        for name, seconds in terms:
            begin, self.clock = self.clock, min(self.clock + seconds * self.share, self.end)
            self._add(name, "engine", (begin, self.clock), ENGINE, {})

    def _add(self, name: str, kind: str, when: tuple[float, float], track: str, facts: Mapping[str, object]) -> None:
        start, end = when
        self.events.append(self.event(name=name, kind=kind, start_s=start, end_s=end, track=track, facts=facts))
