"""Selection and pricing of the forward passes that a timeline shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate
from llmviewer.analysis.passes import system_per_pass
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import number
from llmviewer.result.stages import Interval, system_at, value_at
from llmviewer.result.timeline.unrolled import UnrolledPass, unroll_pass
from llmviewer.serving.generation import Draft

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    graphs = [stage.graph for stage in totals.stages or (totals,)]
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    def stages(self) -> tuple[Evaluation, ...]:
        """Evaluations of the pipeline stages; one without a pipeline."""
        return self.totals.stages or (self.totals,)

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
        for evaluation in self.stages:
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
