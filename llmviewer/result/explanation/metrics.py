"""Times of a stage as trees: a sum of operators and of the engine's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation, TimedOperator
from llmviewer.core.counts import Count
from llmviewer.result.explanation.node import Later, Node, sum_with_rest
from llmviewer.result.explanation.times import operator_time
from llmviewer.result.explanation.work import Pass
from llmviewer.result.stages import ValueOf, value_at, values_of_stage
from llmviewer.serving.generation import Draft

ENGINE = "time of the engine {engine}, fitted to published runs (calibrate/engines/{engine}.yaml)"
OVERLAP = "copies that run beside kernels (timing/overlap.py)"
REST = (
    "work beside the next token, and layers skipped, where tokens exit early in a pipeline (analysis/pipeline_exits.py)"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A point of an analysis whose numbers are explained."""

    analysis: Analysis
    point: int

    def at_pass(self, index: int) -> Pass:
        """The forward pass of an index."""
        own = self.analysis
        return Pass(
            at=lambda values: value_at(values, index),
            chip=own.system.at(self.point).chip,
            calibration=own.calibration,
            config=own.model.source or own.model.name,
        )

    @property
    def drafts(self) -> Iterator[tuple[Draft, Question]]:
        """The draft models, each with the same point of its own analysis."""
        for draft, analysis in self.analysis.drafts:
            yield draft, Question(analysis=analysis, point=self.point)

    def at(self, values: Count) -> float:
        """The value of the point; a scalar is the same at every point."""
        return value_at(values, self.point)

    def summed(self, stage: str) -> ValueOf:
        """Function from a quantity of every pass to its sum over prefill, or to its value in the decode step shown."""
        return values_of_stage(self.analysis.schedule, stage, self.point)[0]

    def together(self, stage: str) -> Pass:
        """All passes of a stage."""
        shown = self.at_pass(self.shown[stage])
        return replace(shown, at=self.summed(stage), shown=shown)

    @property
    def shown(self) -> dict[str, int]:
        """Index of the pass that is shown of each stage: the last of the prompts, the representative decode step."""
        plan = self.analysis.schedule
        ends = np.append(plan.prefill_starts, plan.prefill_passes).astype(int)
        return {"prefill": int(ends[self.point + 1]) - 1, "decode": plan.prefill_passes + self.point}


def sum_node(name: str, value: float, children: tuple[Node, ...], source: str) -> Node:
    """A sum of numbers of seconds, with the rest that they leave if it is more than rounding."""
    return sum_with_rest(name, value, children, source, ("rest_s", REST))


def of_evaluation(one: Question, evaluation: Evaluation, summed: ValueOf, stage: str, share: float) -> Iterator[Node]:
    """Operators of a pipeline stage over its layers, the engine's time and the overlap of copies, each times a share.

    summed: quantity of every pass -> its sum over the passes that count.
    """
    for row in evaluation.rows:
        seconds = summed(row.timing.time_s)
        if seconds:
            yield _operator(one, row, seconds * share, stage)
    engine = one.analysis.system.engine.name
    for name, values in evaluation.served:
        seconds = summed(values) * share
        if seconds:
            yield Node(name=f"engine: {name}", value=seconds, unit="s", source=ENGINE.format(engine=engine))
    for layer in evaluation.copying:
        seconds = summed(layer.hidden_s) * float(layer.block.repeats) * share
        if seconds:
            yield Node(name=f"overlap: {layer.block.name}", value=-seconds, unit="s", source=OVERLAP)


def _operator(one: Question, row: TimedOperator, seconds: float, stage: str) -> Node:
    """An operator over all its layers and all passes of a stage, by its time in the pass that is shown."""
    shown = one.at_pass(one.shown[stage])
    found = over_layers(row, (seconds, shown.at(row.timing.time_s)), stage, partial(operator_time, row, shown))
    asked = f"{'' if stage == 'decode' else f'stages.{stage}.'}operators.{found.name}.time_s"
    return replace(found, asked=asked) if found.formula else found


def over_layers(
    row: TimedOperator, amounts: tuple[float, float], stage: str, opened: Callable[[str], Node], unit: str = "s"
) -> Node:
    """A quantity of an operator over all its layers and all passes of a stage.

    amounts: of one layer, in all passes and in the one shown.  opened: makes the tree of the latter by its name.
    """
    whole, shown = amounts
    layers, name = float(row.block.repeats), f"{row.block.name}.{row.operator.name}"
    many = "layer" if layers == 1.0 else "layers"
    source = f"{layers:g} {many}; passes: sum over the passes of {stage} in units of the one shown"
    if not shown:
        return Node(name=name, value=whole * layers, unit=unit, source=f"{source}; the one shown does not run it")
    inner = "shown_s" if unit == "s" else "shown"
    return Node(
        name=name,
        value=whole * layers,
        unit=unit,
        formula=f"layers * passes * {inner}",
        values={"layers": layers, "passes": whole / shown},
        source=source,
        children=Later(lambda: (opened(inner),)),
    )


def stage_time(one: Question, stage: str) -> Node:
    """Time of a stage: all passes of the prompts, or the representative decode step."""
    totals, summed = one.analysis.evaluation, one.summed(stage)
    children = tuple(of_evaluation(one, totals, summed, stage, 1.0))
    source = f"operators of {stage}, over their layers"
    return sum_node(f"stages.{stage}.time_s", summed(totals.time_s), children, source)
