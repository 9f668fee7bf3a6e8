"""The predicted timeline of a request: prefill and the first decode steps, pass by pass, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from llmviewer.analysis.analysis import Analysis
from llmviewer.result.describe import number
from llmviewer.result.stages import system_at, value_at
from llmviewer.result.timeline.traced import PassSelection, PricedPasses, split_repeats
from llmviewer.result.timeline.unrolled import EngineTerms, KernelRun, LayerRun, UnrolledPass
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft

#: Tracks of a device: kernels with the passes and layers that contain them, and engine time between kernels.
COMPUTE, ENGINE = "compute", "engine"
#: The track of prefill and decode steps as a whole.
REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the timeline, from start_s to end_s after the request arrives [s].

    kind: step, pass, layer, engine, transfer, or the kind of an operator.  stage: pipeline stage, from 0; None for
    events that are not on a device.  machine: pool of a disaggregated system, prefill or decode; "" if there is one.
    track: events on a track may nest but never overlap.  facts: counts of one device, named as in an OPERATOR object.
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
        """The event as a dict, by field name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def timeline(analysis: Analysis, steps: int, point: int = 0) -> tuple[Event, ...]:
    """Events of prefill and the first `steps` decode steps (rounds with speculative decoding) of one point, by start.

    There are fewer steps if the answer is shorter.  Every step takes its `time_s` and begins when the previous one
    ends.  Where times are bounds over all sizes of chunks, the uncut passes are drawn.  Raises UserError for more than
    MAX_EVENTS events.
    """
    analysis = analysis.as_scheduled()
    plan = PassSelection.of(analysis, steps, point)
    own = PricedPasses.of(analysis, plan.passes, point)
    drafts = [
        (draft, PricedPasses.of(drafting, plan.draft_passes(draft), point)) for draft, drafting in analysis.drafts
    ]
    builder = _TimelineBuilder(analysis=analysis, own=own, drafts=drafts, point=point)
    builder.prefill(plan)
    builder.decode(plan)
    return tuple(sorted(builder.events, key=lambda event: (event.start_s, -event.end_s)))


@dataclass(slots=True, kw_only=True, eq=False)
class _TimelineBuilder:
    """Collects events in time order.  free: time at which each pipeline stage of each pool becomes idle [s]."""

    analysis: Analysis
    own: PricedPasses
    drafts: list[tuple[Draft, PricedPasses]]
    point: int
    events: list[Event] = field(default_factory=list)
    free: dict[tuple[str, int], float] = field(default_factory=dict)

    def prefill(self, plan: PassSelection) -> None:
        """Add the prefill passes of the model, then those of draft models with a KV cache, one after another."""
        pool = "prefill" if self.transfer_s is not None else ""
        end = 0.0
        for priced in (self.own, *(priced for draft, priced in self.drafts if draft.caches)):
            owner = "" if priced is self.own else f" of {priced.analysis.model.name}"
            start, end = end, end + float(priced.analysis.own_prefill_s[self.point])
            self.events.append(Event(name=f"prefill{owner}", kind="step", start_s=start, end_s=end))
            for count, (at, share) in enumerate(plan.prefill, 1):
                name = f"prefill{owner}" + (f", pass {count} of {len(plan.prefill)}" if len(plan.prefill) > 1 else "")
                self.add_pass(priced, at, _PassPlacement(name=name, start=start, share=share, pool=pool))
                start += value_at(priced.analysis.passes.busiest_s, at) * share

    def decode(self, plan: PassSelection) -> None:
        """Add the decode steps, one after another."""
        start = float(self.analysis.prefill_s[self.point])
        if self.transfer_s is not None:
            end = start + self.transfer_s
            self.events.append(Event(name="KV cache transfer", kind="transfer", start_s=start, end_s=end))
            start = end
        generation = system_at(self.analysis, self.point).generation
        rounds = generation is not AUTOREGRESSIVE and generation.branches is None
        facts = {"expected_tokens": number(value_at(generation.tokens, 0))} if rounds else {}
        for count, at in enumerate(plan.decode, 1):
            name = f"{'round' if rounds else 'decode step'} {count}"
            end = self._round(at, name, start, value_at(generation.extra_s, 0))
            facts |= {"time_s": end - start}
            self.events.append(Event(name=name, kind="step", start_s=start, end_s=end, facts=dict(facts)))
            start = end

    @property
    def transfer_s(self) -> float | None:
        """KV-cache transfer time from the prefill to the decode pool [s]; None without disaggregation."""
        found = self.analysis.times.facts().get("transfer_s") if self.analysis.running is not None else None
        return None if found is None else value_at(found, self.point)  # type: ignore[arg-type]

    def _round(self, at: int, name: str, start: float, extra_s: float) -> float:
        """Add draft passes, the model's own pass, and time outside kernels; returns the end of the round [s]."""
        for draft, priced in self.drafts:
            runs = list(split_repeats(at, value_at(draft.passes, self.point)))
            for count, (_, share) in enumerate(runs, 1):
                title = f"draft {draft.name}" + (f", pass {count} of {len(runs)}" if len(runs) > 1 else "")
                self.add_pass(priced, at, _PassPlacement(name=title, start=start, share=share))
                start += value_at(priced.analysis.step_s, at) * share
        pool = "decode" if self.transfer_s is not None else ""
        step_s, microbatches = value_at(self.analysis.step_s, at), self.own.in_flight
        for part in range(microbatches):
            title = name if microbatches == 1 else f"{name}, micro-batch {part + 1} of {microbatches}"
            begin = start + step_s * part / microbatches
            self.add_pass(self.own, at, _PassPlacement(name=title, start=begin, pool=pool))
        start += step_s
        if extra_s:
            end = start + extra_s
            event = Event(name="outside kernels", kind="engine", start_s=start, end_s=end, track=ENGINE, stage=0)
            self.events.append(event)
        return start + extra_s

    def add_pass(self, priced: PricedPasses, at: int, placement: _PassPlacement) -> None:
        """Add one forward pass through all pipeline stages."""
        end, facts = placement.start, priced.facts(at)
        for stage, unrolled in enumerate(priced.unrolled(at)):
            start = max(end, self.free.get((placement.pool, stage), 0.0))
            end = start + unrolled.seconds * placement.share
            self.free[placement.pool, stage] = end
            writer = _PassWriter(
                events=self.events,
                event=partial(Event, stage=stage, machine=placement.pool),
                share=placement.share,
                clock=start,
                end=end,
            )
            writer.write(unrolled, placement.name, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassPlacement:
    """Name and position of a pass.  start: earliest start [s].  share: fraction of the pass that runs."""

    name: str
    start: float
    share: float = 1.0
    pool: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class _PassWriter:
    """Writes the events of one device in one pass.

    clock: start of the next kernel [s].  end: end of the pass [s]; no event exceeds it by rounding.
    """

    events: list[Event]
    event: partial[Event]
    share: float
    clock: float
    end: float

    def write(self, unrolled: UnrolledPass, name: str, facts: Mapping[str, object]) -> None:
        """Add the events of a pass, its engine time and its layers."""
        self._add(name, "pass", (self.clock, self.end), COMPUTE, facts)
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
