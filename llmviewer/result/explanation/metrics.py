"""Metrics of a request and times of its stages as trees: a sum of operators, of the engine's time, and of waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError, unknown
from llmviewer.result.attribution import over_passes
from llmviewer.result.explanation.node import Later, Node
from llmviewer.result.explanation.times import operator_time
from llmviewer.result.explanation.work import Pass, traffic

ENGINE = "time of the engine {engine}, fitted to published runs (calibrate/engines/{engine}.yaml)"
OVERLAP = "copies that run beside kernels (timing/overlap.py)"
WAITING = "queueing, other requests' prompts, draft models and the overlap of pipeline stages (serving/batching.py)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A point of an analysis whose numbers are explained."""

    analysis: Analysis
    point: int

    def at_pass(self, index: int) -> Pass:
        """The forward pass of an index."""
        own = self.analysis
        return Pass(
            at=lambda values: _at(values, index),
            chip=own.system.at(self.point).chip,
            calibration=own.calibration,
            config=own.model.source or own.model.name,
        )

    @property
    def shown(self) -> dict[str, int]:
        """Index of the pass that is shown of each stage: the last of the prompts, the representative decode step."""
        plan = self.analysis.schedule
        ends = np.append(plan.prefill_starts, plan.prefill_passes).astype(int)
        return {"prefill": int(ends[self.point + 1]) - 1, "decode": plan.prefill_passes + self.point}


def _at(values: Count, index: int) -> float:
    values = np.asarray(values)
    return float(values.reshape(-1)[index] if values.size > 1 else values.reshape(-1)[0])


def metric_time(one: Question, metric: str) -> Node:
    """A latency as the sum of its operators over all passes, the engine's time and the rest."""
    own = one.analysis
    value = float(getattr(own, metric)[one.point])
    if np.isnan(value):
        raise UserError(f"{metric} is undefined for one output token; give --output-len 2 or more, or another metric")
    if metric == "e2e_s":
        children: tuple[Node, ...] = (metric_time(one, "ttft_s"), _generation(one))
        return _sum("e2e_s", value, children, "time to the first token, and from there to the last one")
    stage = "prefill" if metric == "ttft_s" else "decode"
    share = 1.0 if metric == "ttft_s" else 1.0 / float(own.schedule.tokens[one.point])
    what = "prefill of all prompts of the batch" if metric == "ttft_s" else "mean over the real decode steps, per token"
    return _sum(metric, value, tuple(_terms(one, stage, share)), what)


def _generation(one: Question) -> Node:
    """Time from the first token to the last."""
    value = float(one.analysis.generation_s[one.point])
    return _sum("generation_s", value, tuple(_terms(one, "decode", 1.0)), "all real decode steps")


def _sum(name: str, value: float, children: tuple[Node, ...], source: str) -> Node:
    """A sum with the rest that its terms leave."""
    rest = value - sum(child.value for child in children)
    if abs(rest) > 1e-9 * abs(value):
        children = (*children, Node(name="rest_s", value=rest, unit="s", source=WAITING))
    return Node(name=name, value=value, unit="s", formula="sum(children)", source=source, children=children)


def _terms(one: Question, stage: str, share: float) -> Iterator[Node]:
    """Operators of a stage over its passes, the engine's time, and the overlap, each times a share."""
    own = one.analysis
    if own.system.block and stage == "decode":  # a step runs the pass of every GPU batch
        share = share * float(own.in_flight[one.point])
    for evaluation in own.evaluation.stages or (own.evaluation,):
        yield from _of_evaluation(one, evaluation, _summed(own, stage, one.point), stage, share)


def _summed(own: Analysis, stage: str, point: int) -> Callable[[Count], float]:
    """Function from a quantity of every pass to its sum over the passes of a stage."""
    return lambda values: float(over_passes(own, stage, values)[point])


def _of_evaluation(
    one: Question, evaluation: Evaluation, summed: Callable[[Count], float], stage: str, share: float
) -> Iterator[Node]:
    for row in evaluation.rows:
        seconds = summed(row.timing.time_s)
        if seconds:
            yield _operator(one, row, seconds, stage, share)
    engine = one.analysis.system.engine.name
    for name, values in evaluation.served:
        seconds = summed(values) * share
        if seconds:
            yield Node(name=f"engine: {name}", value=seconds, unit="s", source=ENGINE.format(engine=engine))
    for layer in evaluation.copying:
        seconds = summed(layer.hidden_s) * float(layer.block.repeats) * share
        if seconds:
            yield Node(name=f"overlap: {layer.block.name}", value=-seconds, unit="s", source=OVERLAP)


def _operator(one: Question, row: TimedOperator, seconds: float, stage: str, share: float) -> Node:
    """An operator over all its layers and all passes of a stage, by its time in the pass that is shown."""
    at_pass = one.at_pass(one.shown[stage])
    shown_s = at_pass.at(row.timing.time_s)
    layers = float(row.block.repeats)
    value = seconds * layers * share
    name = f"{row.block.name}.{row.operator.name}"
    many = "layer" if layers == 1.0 else "layers"
    source = f"{layers:g} {many}; passes: sum over the passes of {stage} in units of the one shown"
    if shown_s > 0.0:
        passes = seconds * share / shown_s
        values: Mapping[str, float] = {"layers": layers, "passes": passes}
        return Node(
            name=name,
            value=value,
            unit="s",
            formula="layers * passes * shown_s",
            values=values,
            source=source,
            asked=f"{'' if stage == 'decode' else f'stages.{stage}.'}operators.{name}.time_s",
            children=Later(lambda: (operator_time(row, at_pass, "shown_s"),)),
        )
    return Node(name=name, value=value, unit="s", source=f"{source}; the one shown does not run it")


def stage_time(one: Question, stage: str) -> Node:
    """Time of a stage: a pass of prompts over all its passes, or the representative decode step."""
    own, index = one.analysis, one.shown[stage]
    totals = own.evaluation

    def summed(values: Count) -> float:
        return float(own.schedule.prefill(values)[one.point]) if stage == "prefill" else _at(values, index)

    children = tuple(_of_evaluation(one, totals, summed, stage, 1.0))
    return _sum(f"stages.{stage}.time_s", summed(totals.time_s), children, f"operators of {stage}, over their layers")


def operator_node(one: Question, name: str, field: str, stage: str) -> Node:
    """A number of one operator of one layer in the pass that is shown: time_s or traffic_bytes.

    name: of the operator, which then is that of the first block that runs it, or BLOCK.OPERATOR.
    Raises UserError for an operator that the graph does not have.
    """
    found = _runs_of(one, name, stage)
    shown = one.at_pass(one.shown[stage])
    if field == "traffic_bytes":
        return traffic(found[0], shown)
    if field != "time_s":
        raise unknown("number of an operator", field, ("time_s", "traffic_bytes"))
    full = f"{found[0].block.name}.{found[0].operator.name}" if len(found) > 1 else name
    return operator_time(found[0], shown, f"{full}.time_s")


def blocks_of(one: Question, name: str, stage: str) -> list[str]:
    """The blocks that run an operator of this name in the pass that is shown, in their order; one for BLOCK.OPERATOR.

    Raises UserError for an operator that the graph does not have.
    """
    return [row.block.name for row in _runs_of(one, name, stage)]


def _runs_of(one: Question, name: str, stage: str) -> list[TimedOperator]:
    shown = one.at_pass(one.shown[stage])
    rows = [row for row in one.analysis.evaluation.rows if shown.at(row.timing.time_s) > 0.0]
    found = [row for row in rows if name in (row.operator.name, f"{row.block.name}.{row.operator.name}")]
    if not found:
        counted = Counter(row.operator.name for row in rows)
        several = (f"{row.block.name}.{row.operator.name}" for row in rows if counted[row.operator.name] > 1)
        raise unknown("operator", name, [*counted, *several])
    return found
