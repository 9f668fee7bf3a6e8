"""The predicted timeline of a request: the passes that it shows, priced, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate, system_per_pass
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import number
from llmviewer.result.stages import Interval, system_at, value_at
from llmviewer.result.timeline.unrolled import (
    ENGINE,
    Arrow,
    Event,
    PassPlacement,
    PassWriter,
    StepFacts,
    UnrolledPass,
    unroll_pass,
)
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft

#: Index of a forward pass in the schedule, and the fraction of it that runs; below 1 for the rest of a mean number.
PartialPass: TypeAlias = tuple[int, float]
#: Most events of a timeline; viewers become slow beyond this.
MAX_EVENTS = 250_000


def check_event_count(events: float) -> None:
    """Raise UserError for more than MAX_EVENTS events."""
    if events > MAX_EVENTS:
        raise UserError(
            f"the timeline takes {events:,.0f} events or more; allowed: at most {MAX_EVENTS:,} "
            "(fewer steps or chips, a shorter prompt, a larger token budget)"
        )


@frozen(eq=False)
class PassSelection:
    """Passes of the schedule that the timeline shows, in order."""

    prefill: tuple[PartialPass, ...]
    decode: tuple[int, ...]

    @classmethod
    def of(cls, analysis: Analysis, steps: int, point: int) -> PassSelection:
        """Select all prefill passes of a point and its first `steps` decode steps."""
        plan = analysis.schedule
        first = int(plan.prefill_starts[point])
        stop = int(plan.prefill_starts[point + 1] if point + 1 < plan.points else plan.prefill_passes)
        prefills, decodes = float(np.sum(plan.repeats[first:stop])), min(steps, float(plan.decode_steps[point]))
        check_event_count(_estimated_events(analysis, point, prefills, decodes))
        prefill = tuple(part for at in range(first, stop) for part in split_repeats(at, float(plan.repeats[at])))
        return cls(prefill=prefill, decode=tuple(_steps(analysis, steps, point)))

    @property
    def passes(self) -> tuple[int, ...]:
        """All passes to price, without duplicates."""
        return tuple(dict.fromkeys((*(at for at, _ in self.prefill), *self.decode)))

    def draft_passes(self, draft: Draft) -> tuple[int, ...]:
        """Passes to price for a draft model; it runs prefill only if it has a KV cache."""
        return self.passes if draft.caches else tuple(dict.fromkeys(self.decode))


def _estimated_events(analysis: Analysis, point: int, prefills: float, steps: float) -> float:
    """Approximate number of events of these passes, draft passes included."""
    microbatches = value_at(analysis.in_flight, point)
    events = _events_per_pass(analysis.evaluation) * (prefills + steps * microbatches)
    for draft, drafting in analysis.drafts:
        passes = steps * np.ceil(value_at(draft.passes, point)) + (prefills if draft.caches else 0.0)
        events += _events_per_pass(drafting.evaluation) * passes
    return float(events)


def _events_per_pass(totals: Evaluation) -> float:
    """Approximate number of events of one pass through all pipeline stages."""
    gaps = 2 if totals.served else 1
    graphs = [stage.graph for stage in totals.each_stage]
    return float(sum(b.repeats * (1 + gaps * len(b.operators)) for graph in graphs for b in graph.blocks))


def split_repeats(at: int, repeats: float) -> Iterator[PartialPass]:
    """Pass `at` repeated; if `repeats` is not a whole number, the last one runs in part."""
    for _ in range(int(repeats)):
        yield at, 1.0
    if repeats - int(repeats) > 1e-9:
        yield at, repeats - int(repeats)


def _steps(analysis: Analysis, steps: int, point: int) -> Iterator[int]:
    """Passes of the first decode steps; each round starts after the expected tokens of the rounds before it."""
    plan, generation = analysis.schedule, system_at(analysis, point).generation
    first, count = int(plan.decode_starts[point]), int(plan.decode_steps[point])
    every = [at for at in range(first, first + count) for _ in split_repeats(at, float(plan.repeats[at]))]
    offsets = (int(step * value_at(generation.tokens, 0)) for step in range(steps))
    yield from (every[offset] for offset in takewhile(lambda offset: offset < len(every), offsets))


@frozen(eq=False)
class PricedPasses:
    """Selected passes of one model, evaluated.

    index: pass in the schedule -> position in the evaluation.  ratios: id of a timed operator -> bounds of its time
    over the time, shape (4, passes); empty for ideal times.
    """

    analysis: Analysis
    totals: Evaluation
    step: Step
    index: Mapping[int, int]
    point: int
    ratios: Mapping[int, Array]

    @classmethod
    def of(cls, analysis: Analysis, passes: tuple[int, ...], point: int) -> PricedPasses:
        """Evaluate the selected passes again, because an analysis of many passes keeps only their times."""
        selected = np.array(passes, dtype=np.intp)
        step = Step(tuple(group.select(selected) for group in analysis.schedule.step.groups))
        system = system_per_pass(analysis.system, analysis.schedule, selected)
        totals = evaluate(analysis.model, system, step)
        index = {at: number for number, at in enumerate(passes)}
        ratios = _ratios(analysis, totals, system.chip)
        return cls(analysis=analysis, totals=totals, step=step, index=index, point=point, ratios=ratios)

    @property
    def in_flight(self) -> int:
        """Number of micro-batches of a decode step."""
        return int(value_at(self.analysis.in_flight, self.point))

    def value(self, count: Count, at: int) -> float:
        """The value of a count for one pass of the schedule."""
        return value_at(count, self.index[at])

    def unrolled(self, at: int) -> list[UnrolledPass]:
        """The pass as it runs on each pipeline stage."""
        chip, value = system_at(self.analysis, self.point).chip, partial(self.value, at=at)
        first, stages = 0, []
        for evaluation in self.totals.each_stage:
            stages.append(unroll_pass(evaluation, chip, value, partial(self._interval, at), first))
            first += sum(block.repeats for block in evaluation.graph.blocks if block.is_layer)
        return stages

    def facts(self, at: int) -> dict[str, object]:
        """Batch, tokens, times and counts of a pass, on the device with the most work."""
        group, *riders = self.step.groups
        values = {name: getattr(group, name) for name in ("batch_size", "new_tokens", "cached_tokens")}
        if riders:
            values["decoding_beside"] = riders[0].batch_size
        totals = ("time_s", "ideal_time_s", "flops", "matmul_flops", "traffic_bytes")
        values |= {name: getattr(self.totals, name) for name in totals}
        facts: dict[str, object] = {name: number(self.value(count, at)) for name, count in values.items()}
        return facts | ({"time_interval_s": self._pass_interval(at)} if self.ratios else {})

    def _interval(self, at: int, row: TimedOperator) -> Interval:
        """Interval of the time of one run of an operator [s]."""
        if not self.ratios:
            return None
        from llmviewer.result import interval  # ideal times have no interval

        bounds = [[self.value(ratio * row.timing.time_s, at)] for ratio in self.ratios[id(row)]]
        return interval.levels(np.array(bounds), 0)

    def _pass_interval(self, at: int) -> Interval:
        """Interval of the time of a whole pass [s]."""
        from llmviewer.result import interval

        def pick(count: Count) -> Array:
            return np.array([self.value(count, at)])

        calibration = self.analysis.calibration
        assert calibration is not None
        bounds = interval.sum_bounds(self.totals, calibration, self.ratios, pick, pick(self.totals.time_s))
        return interval.levels(bounds, 0)


def _ratios(analysis: Analysis, totals: Evaluation, chip: Chip) -> dict[int, Array]:
    """Bounds over times of all operators of an evaluation and of its pipeline stages; none for ideal times."""
    if analysis.calibration is None:
        return {}
    from llmviewer.result.interval import bound_ratios

    found = [bound_ratios(evaluation, analysis.calibration, chip) for evaluation in (totals, *totals.stages)]
    return {row: ratios for one in found for row, ratios in one.items()}


def timeline(analysis: Analysis, steps: int, point: int = 0) -> tuple[Event, ...]:
    """Events of prefill and the first `steps` decode steps (rounds with speculative decoding) of one point, by start.

    There are fewer steps if the answer is shorter.  Every step takes its `time_s` and begins when the previous one
    ends.  Where times are bounds over all sizes of chunks, the uncut passes are drawn.  Raises UserError for more than
    MAX_EVENTS events, and for draft passes of micro-batches.
    """
    if analysis.drafts and analysis.system.parallelism.microbatches > 1:
        raise UserError("draft passes of micro-batches in a pipeline overlap and are not drawn; use microbatches=1")
    analysis = analysis.as_scheduled()
    plan = PassSelection.of(analysis, steps, point)
    own = PricedPasses.of(analysis, plan.passes, point)
    drafts = [
        (draft, PricedPasses.of(drafting, plan.draft_passes(draft), point)) for draft, drafting in analysis.drafts
    ]
    facts = StepFacts.of(analysis, len(plan.decode), point)
    builder = _TimelineBuilder(analysis=analysis, own=own, drafts=drafts, point=point, facts=facts)
    builder.prefill(plan)
    builder.decode(plan)
    return tuple(sorted(builder.events, key=lambda event: (event.start_s, -event.end_s)))


@dataclass(slots=True, kw_only=True, eq=False)
class _TimelineBuilder:
    """Collects events in time order.

    free: time at which each pipeline stage of each pool becomes idle [s].  arrows: number of arrows so far.  sent: the
    arrow that the next event receives.
    """

    analysis: Analysis
    own: PricedPasses
    drafts: list[tuple[Draft, PricedPasses]]
    point: int
    facts: StepFacts
    events: list[Event] = field(default_factory=list)
    free: dict[tuple[str, int], float] = field(default_factory=dict)
    arrows: int = 0
    sent: tuple[Arrow, ...] = ()

    def send(self, name: str) -> tuple[Arrow, ...]:
        """A new arrow, for the event that `receive` is called for next."""
        self.arrows += 1
        self.sent = ((self.arrows, name),)
        return self.sent

    def receive(self) -> tuple[Arrow, ...]:
        """The arrow sent last, unless it was received."""
        received, self.sent = self.sent, ()
        return received

    def prefill(self, plan: PassSelection) -> None:
        """Add the prefill passes of the model, then those of draft models with a KV cache, one after another."""
        pool = "prefill" if self.transfer_s is not None else ""
        end, facts = 0.0, dict[str, object]()
        for priced in (self.own, *(priced for draft, priced in self.drafts if draft.caches)):
            owner = "" if priced is self.own else f" of {priced.analysis.model.name}"
            start, end = end, end + float(priced.analysis.own_prefill_s[self.point])
            facts = self.facts.interval("prefill", end - start) if priced is self.own else {"time_s": end - start}
            self.events.append(Event(name=f"prefill{owner}", kind="step", start_s=start, end_s=end, facts=facts))
            for count, (at, share) in enumerate(plan.prefill, 1):
                name = f"prefill{owner}" + (f", pass {count} of {len(plan.prefill)}" if len(plan.prefill) > 1 else "")
                sends = self.send("KV cache") if pool and count == len(plan.prefill) else ()
                self.add_pass(priced, at, PassPlacement(name=name, start=start, share=share, pool=pool, sends=sends))
                start += value_at(priced.analysis.gap_s, at) * share
        facts["kv_cache_bytes"] = self.facts.cache(0)  # when the last prefill ends

    def decode(self, plan: PassSelection) -> None:
        """Add the decode steps, one after another."""
        start = float(self.analysis.prefill_s[self.point])
        if self.transfer_s is not None:
            end, received = start + self.transfer_s, self.receive()
            sends = self.send("KV cache") if plan.decode else ()
            event = Event(
                name="KV cache transfer", kind="transfer", start_s=start, end_s=end, receives=received, sends=sends
            )
            self.events.append(event)
            start = end
        system = system_at(self.analysis, self.point)
        generation = system.generation
        rounds = generation is not AUTOREGRESSIVE and not generation.counts_passes
        tokens = {"expected_tokens": number(value_at(generation.tokens, 0))} if rounds else {}
        for count, at in enumerate(plan.decode, 1):
            name = f"{'round' if rounds else 'decode step'} {count}"
            end = self._round(at, name, start, value_at(system.outside_kernels_s, 0))
            facts = tokens | self.facts.at(count, end - start)
            self.events.append(Event(name=name, kind="step", start_s=start, end_s=end, facts=facts))
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
                received, sends = self.receive(), self.send("draft tokens")
                place = PassPlacement(name=title, start=start, share=share, receives=received, sends=sends)
                self.add_pass(priced, at, place)
                start += value_at(priced.analysis.step_s, at) * share
        pool = "decode" if self.transfer_s is not None else ""
        step_s, microbatches = value_at(self.analysis.step_s, at), self.own.in_flight
        for part in range(microbatches):
            title = name if microbatches == 1 else f"{name}, micro-batch {part + 1} of {microbatches}"
            begin = start + step_s * part / microbatches
            self.add_pass(self.own, at, PassPlacement(name=title, start=begin, pool=pool, receives=self.receive()))
        start += step_s
        if extra_s:
            end = start + extra_s
            event = Event(name="outside kernels", kind="engine", start_s=start, end_s=end, track=ENGINE, stage=0)
            self.events.append(event)
        return start + extra_s

    def add_pass(self, priced: PricedPasses, at: int, placement: PassPlacement) -> None:
        """Add one forward pass through all pipeline stages."""
        end, facts, stages = placement.start, priced.facts(at), priced.unrolled(at)
        for stage, unrolled in enumerate(stages):
            start = max(end, self.free.get((placement.pool, stage), 0.0))
            end = start + unrolled.seconds * placement.share
            self.free[placement.pool, stage] = end
            event = partial(Event, stage=stage, machine=placement.pool)
            writer = PassWriter(events=self.events, event=event, share=placement.share, clock=start, end=end)
            received = placement.receives if stage == 0 else ()
            sends = placement.sends if stage == len(stages) - 1 else ()
            writer.write(unrolled, partial(event, name=placement.name, facts=facts, receives=received, sends=sends))
