"""Passes of a model over its pipeline stages as parts of a time: which stage counts in which pass, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core.counts import Array, Count
from llmviewer.result.explanation.metrics import Question, of_evaluation, sum_node
from llmviewer.result.explanation.node import Node, of_formula, sum_of
from llmviewer.result.stages import ValueOf, value_at

MICRO_BATCHES = "micro-batches that pass through a stage one after another (--pipeline-parallel-size, gpu_batches)"
THROUGH = "passes through stage {number} of the pipeline"
SLOWEST = "passes on stage {number}, the slowest one, which works on all micro-batches"
FILL = "bubble: the first micro-batch passes the other stages while the slowest one waits (serving/schedule.py)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One pipeline stage and the passes that count.  weight: per pass, 1.0 where it counts.

    stage: its number from 1, 0 without a pipeline.  in_turn: it counts once for every micro-batch.
    """

    evaluation: Evaluation
    weight: Count
    stage: int = 0
    in_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Modes:
    """The causes for which a step waits, 1.0 or 0.0 per pass.

    through: all stages.  slowest, last: all micro-batches on the slowest or on the last stage.
    """

    through: Count
    slowest: Count = 0.0
    last: Count = 0.0


def parts(own: Analysis, modes: Modes) -> Iterator[Part]:
    """The stages of a model in the passes in which they count."""
    stages = own.evaluation.stages or (own.evaluation,)
    slowest = _slowest(stages)
    for at, evaluation in enumerate(stages):
        number = at + 1 if len(stages) > 1 else 0
        last = modes.last if evaluation is stages[-1] else 0.0
        in_turn = modes.slowest * np.where(slowest == at, 1.0, 0.0) + last
        found = (
            Part(evaluation=evaluation, stage=number, weight=modes.through),
            Part(evaluation=evaluation, stage=number, weight=in_turn, in_turn=True),
        )
        yield from (part for part in found if np.any(part.weight))


def _slowest(stages: tuple[Evaluation, ...]) -> Array:
    """Index of the slowest stage of every pass."""
    times = np.broadcast_arrays(*(np.atleast_1d(stage.time_s) for stage in stages))
    return np.asarray(np.argmax(np.stack(times), axis=0))


def step_modes(own: Analysis) -> Modes:
    """The causes for which a step of all micro-batches waits, without draft models (`Analysis.step_s`)."""
    if own.system.parallelism.microbatches == 1:
        return Modes(through=1.0)
    time_s, busiest_s, _ = own.evaluation.passing_s
    waits = np.where(busiest_s * in_flight_of(own, busiest_s) > time_s, 1.0, 0.0)
    return Modes(through=1.0 - waits, slowest=waits)


def round_modes(own: Analysis) -> Modes:
    """The causes for which a round with draft models waits, of all micro-batches (`pricing.rounds_of_microbatches`)."""
    through, slowest, last = own.evaluation.passing_s
    for draft, one in own.drafts:
        time_s, busiest_s, last_s = one.evaluation.passing_s
        through = through + draft.passes * time_s
        slowest = slowest + draft.passes * (busiest_s if draft.same_weights else 0.0)
        last = last + draft.passes * last_s
    count = in_flight_of(own, through)
    waits = np.where(count * np.maximum(slowest, last) > through, 1.0, 0.0)
    of_last = np.where(last > slowest, waits, 0.0)
    return Modes(through=1.0 - waits, slowest=waits - of_last, last=of_last)


def in_flight_of(own: Analysis, values: Count) -> Array:
    """Micro-batches in every pass that `values` cover."""
    found: Array = own.in_flight[own.schedule.point_of_pass.astype(int)]
    return found[: np.size(values)] if np.size(values) > 1 else found


def nodes(one: Question, found: Iterator[Part], summed: ValueOf, stage: str, share: float) -> Iterator[Node]:
    """The parts of a time as numbers: operators alone without a pipeline, else a sum per pipeline stage.

    share: factor of all of them; a part that counts for every micro-batch takes their number too.
    """
    for part in found:
        found_s = of_evaluation(one, part.evaluation, partial(_weighted, summed, part.weight), stage, share)
        inner = tuple(_named(part, child) for child in found_s)
        if inner and part.in_turn:
            yield _in_turn(part, inner, one.at(one.analysis.in_flight))
        elif inner and part.stage:
            name, source = f"stage {part.stage}", THROUGH.format(number=part.stage)
            yield sum_of(name, inner, source)
        else:
            yield from inner


def _weighted(summed: ValueOf, weight: Count, values: Count) -> float:
    return summed(values * weight)


def _in_turn(part: Part, inner: tuple[Node, ...], count: float) -> Node:
    """The time of all micro-batches on one stage."""
    source = SLOWEST.format(number=part.stage) if part.stage else "passes of one micro-batch"
    one = sum_of("pass_s", inner, source)
    batches = Node(name="micro_batches", value=count, source=MICRO_BATCHES)
    name = f"stage {part.stage}, micro-batches in turn" if part.stage else "micro-batches in turn"
    return of_formula(name, "micro_batches * pass_s", (batches, one), source)


def _named(part: Part, node: Node) -> Node:
    return replace(node, name=f"stage {part.stage}: {node.name}") if part.stage else node


def own_prefill(one: Question, *, fill: bool = True) -> Iterator[Node]:
    """Prefill by a model without its draft models (`Analysis.own_prefill_s`).

    fill: with the time in which the pipeline fills; without it, the time after which other prompts may follow.
    """
    own, summed = one.analysis, one.summed("prefill")
    if own.system.parallelism.pipeline == 1:
        yield from nodes(one, parts(own, Modes(through=1.0)), summed, "prefill", 1.0)
    elif own.running is not None and own.running.mixed:
        yield from nodes(one, parts(own, step_modes(own)), summed, "prefill", 1.0)
    else:
        repeated = own.running is None and own.system.parallelism.microbatches > 1
        share = 1.0 / one.at(own.in_flight) if repeated else 1.0
        slowest = parts(own, Modes(through=0.0, slowest=1.0))
        found = slowest if repeated else (replace(part, in_turn=False) for part in slowest)
        yield from nodes(one, found, summed, "prefill", share)
        if fill:
            yield _fill(one)


def _fill(one: Question) -> Node:
    """The longest time that a pass spends in the stages beside the slowest one."""
    own, point = one.analysis, one.point
    passes, plan = own.passes, own.schedule
    if passes.fill_s is not None:
        source = "one token through the stages beside the slowest one: the least that fills the pipeline"
        return Node(name="fill_s", value=one.at(passes.fill_s), unit="s", source=source)
    ends = np.append(plan.prefill_starts, plan.prefill_passes).astype(int)
    inside = [value_at(passes.time_s - passes.busiest_s, index) for index in range(ends[point], ends[point + 1])]
    index = int(ends[point] + np.argmax(inside))
    stages = own.evaluation.stages
    slowest = int(value_at(_slowest(stages), index))
    others = (Part(evaluation=stage, weight=1.0, stage=at + 1) for at, stage in enumerate(stages) if at != slowest)
    inner = tuple(nodes(one, others, lambda values: value_at(values, index), "prefill", 1.0))
    return sum_node("fill_s", float(np.max(inside)), inner, FILL)
