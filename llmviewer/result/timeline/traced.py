"""Which passes of a schedule a timeline draws, and what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.capacity import per_pass
from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Step
from llmviewer.result.describe import number
from llmviewer.result.stages import system_at, value_at
from llmviewer.result.timeline.unrolled import Unrolled, unrolled
from llmviewer.serving.generation import Draft

#: A forward pass among those of a schedule, and the share of it that runs: one, or what is left of a mean number.
Share: TypeAlias = tuple[int, float]
#: Events of a timeline; a page that draws more of them crawls.
MOST_EVENTS = 250_000


def check(events: float) -> None:
    """Raise for more events than anyone looks at."""
    if events > MOST_EVENTS:
        raise UserError(
            f"the timeline takes {events:,.0f} events or more; allowed: at most {MOST_EVENTS:,} "
            "(fewer steps or chips, a shorter prompt, a larger token budget)"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedPasses:
    """Which passes of the schedule are drawn, in order."""

    prefill: tuple[Share, ...]
    decode: tuple[int, ...]

    @classmethod
    def of(cls, analysis: Analysis, steps: int, point: int) -> TracedPasses:
        """The prefill passes of a point, and as many decode steps as asked for."""
        plan = analysis.schedule
        first = int(plan.prefill_starts[point])
        after = plan.prefill_starts[point + 1] if point + 1 < plan.points else plan.prefill_passes
        often = float(np.sum(plan.repeats[first : int(after)])), min(steps, float(plan.decode_steps[point]))
        check(_events(analysis, point, *often))
        prefill = tuple(share for at in range(first, int(after)) for share in times(at, float(plan.repeats[at])))
        return cls(prefill=prefill, decode=tuple(_steps(analysis, steps, point)))

    @property
    def passes(self) -> tuple[int, ...]:
        """All that are priced."""
        return tuple(dict.fromkeys((*(at for at, _ in self.prefill), *self.decode)))

    def of_draft(self, draft: Draft) -> tuple[int, ...]:
        """Those of a draft, which fills a cache where it has one."""
        return self.passes if draft.caches else tuple(dict.fromkeys(self.decode))


def _events(analysis: Analysis, point: int, prefills: float, steps: float) -> float:
    """About how many so many passes make, those of what drafts included."""
    parallelism = analysis.system.parallelism
    several = value_at(parallelism.in_flight(analysis.request), point)
    made = _of_pass(analysis.evaluation) * (prefills + steps * several)
    for draft, drafting in analysis.drafts:
        often = steps * np.ceil(value_at(draft.passes, point)) + (prefills if draft.caches else 0.0)
        made += _of_pass(drafting.evaluation) * often
    return float(made)


def _of_pass(totals: Evaluation) -> float:
    """Events of one pass through all stages, about."""
    gaps = 2 if totals.served else 1
    graphs = [stage.graph for stage in totals.stages or (totals,)]
    return float(sum(b.repeats * (1 + gaps * len(b.operators)) for graph in graphs for b in graph.blocks))


def times(at: int, often: float) -> Iterator[Share]:
    """A pass that runs so often; of a mean number the last one in part."""
    for _ in range(int(often)):
        yield at, 1.0
    if often - int(often) > 1e-9:
        yield at, often - int(often)


def _steps(analysis: Analysis, steps: int, point: int) -> Iterator[int]:
    """The passes of decode steps; a round begins where the expected tokens of those before it end."""
    plan, generation = analysis.schedule, system_at(analysis, point).generation
    first, count = int(plan.decode_starts[point]), int(plan.decode_steps[point])
    if generation.branches is not None:
        every = (at for at in range(first, first + count) for _ in times(at, float(plan.repeats[at])))
        yield from (at for at, _ in zip(every, range(steps), strict=False))
        return
    places = (int(drawn * value_at(generation.tokens, 0)) for drawn in range(steps))
    yield from (first + place for place in takewhile(lambda place: place < count, places))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedPasses:
    """Some passes of one model.  index: of the schedule -> among those priced."""

    analysis: Analysis
    totals: Evaluation
    step: Step
    index: Mapping[int, int]
    point: int

    @classmethod
    def of(cls, analysis: Analysis, passes: tuple[int, ...], point: int) -> TimedPasses:
        """Evaluated once more: an analysis of many passes keeps none but their times."""
        some = np.array(passes, dtype=np.intp)
        step = Step(tuple(group.some(some) for group in analysis.schedule.step.groups))
        totals = evaluate(analysis.model, per_pass(analysis.system, analysis.schedule, some), step)
        index = {at: number for number, at in enumerate(passes)}
        return cls(analysis=analysis, totals=totals, step=step, index=index, point=point)

    @property
    def stages(self) -> tuple[Evaluation, ...]:
        """Of a pipeline."""
        return self.totals.stages or (self.totals,)

    @property
    def in_flight(self) -> int:
        """Micro-batches of a decode step."""
        return int(value_at(self.analysis.system.parallelism.in_flight(self.analysis.request), self.point))

    def value(self, count: Count, at: int) -> float:
        """A count of the priced passes -> that of one."""
        return value_at(count, self.index[at])

    def unrolled(self, at: int) -> list[Unrolled]:
        """A pass, stage by stage."""
        chip, of, first, found = system_at(self.analysis, self.point).chip, partial(self.value, at=at), 0, []
        for one in self.stages:
            found.append(unrolled(one, chip, of, first))
            first += sum(block.repeats for block in one.graph.blocks if block.scope != "model")
        return found

    def facts(self, at: int) -> dict[str, object]:
        """What a pass is, and its counts on the fullest device."""
        group, *riders = self.step.groups
        said = {name: getattr(group, name) for name in ("batch_size", "new_tokens", "cached_tokens")}
        if riders:
            said["decoding_beside"] = riders[0].batch_size
        totals = ("time_s", "ideal_time_s", "flops", "matmul_flops", "traffic_bytes")
        said |= {name: getattr(self.totals, name) for name in totals}
        return {name: number(self.value(count, at)) for name, count in said.items()}
