"""Any number of a result as a tree, by the name that it has in the JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.language import quantity
from llmviewer.language.option import Kind, Option
from llmviewer.language.quantity import LATENCIES, METRICS
from llmviewer.result.costs import COSTS, OF_ONE_RUN
from llmviewer.result.explanation.figures import OPERATOR_FIGURES, STAGE_FIGURES, blocks_of, operator_node, stage_figure
from llmviewer.result.explanation.latencies import metric_time, utilization
from llmviewer.result.explanation.memory import LIMITS, NAMES, limit, memory_node
from llmviewer.result.explanation.metrics import Question, stage_time
from llmviewer.result.explanation.node import SCHEMA, Node, evaluated, of_formula
from llmviewer.result.figures import INPUTS, Figures
from llmviewer.result.result import Result

STAGES = ("prefill", "decode")
#: Levels of the tree and largest parts of a sum that tables show.
DEPTH, ROWS = 3, 8
OWN = {
    **OF_ONE_RUN,
    "number": Option(
        kind=Kind.WORD,
        argument=True,
        help="tpot_s, operators.q_proj.time_s, of one kind of layer operators.BLOCK.q_proj.time_s, ... (list).",
        json={
            "description": "The number to explain: ttft_s, tpot_s, e2e_s, memory.total_bytes, memory.kv_cache_bytes,"
            " stages.decode.time_s, operators.NAME.time_s, operators.BLOCK.NAME.time_s.",
        },
    ),
}
#: Option of money or energy -> inputs of formulas that it states.
USED_BY = {
    **dict.fromkeys(("price", "prices", "price_kind"), frozenset({"device_usd_per_hour", "idle_usd_per_hour"})),
    "owned": {"device_usd_per_hour", "idle_usd_per_hour", "pue"},
    "carbon": {"g_per_kwh"},
    "api_price": {"saved_usd_per_hour"},
}
FIGURES = ("time_s", *STAGE_FIGURES)
#: Beginnings of the names of an operator's numbers; without a block, the first one that runs it is meant.
OPERATORS = (
    "operators.NAME",
    "operators.BLOCK.NAME",
    "stages.prefill.operators.NAME",
    "stages.prefill.operators.BLOCK.NAME",
)


@frozen(repr=False)
class Explanation(Answer):
    """The tree of one number.  metric: its name as asked.  subject: the model and the chip.  result: that has it."""

    QUESTION: ClassVar[str] = "explain"
    metric: str
    subject: str
    root: Node
    result: Result
    warnings: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The explained number, in the unit of the root."""
        return self.root.value

    def evaluated(self) -> float:
        """The number by the formulas of the tree."""
        return evaluated(self.root)

    def rows(self) -> list[dict[str, Any]]:
        """One row per node of the tree."""
        nodes = (node.to_dict() for node in self.root.walk())
        return [{name: value for name, value in one.items() if name not in ("children", "values")} for one in nodes]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": SCHEMA, **self.root.to_dict(), "warnings": list(self.warnings)}


def names() -> tuple[str, ...]:
    """Names of the numbers that can be explained; NAME stands for an operator, BLOCK for a kind of layer."""
    return (
        *METRICS,
        *(f"memory.{name}" for name in (*NAMES, *LIMITS)),
        *(f"stages.{stage}.{figure}" for stage in STAGES for figure in FIGURES),
        *(f"{where}.{figure}" for where in OPERATORS for figure in OPERATOR_FIGURES),
    )


def check_costs(name: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for a stated option of money or energy that is not in a number."""
    for option, uses in USED_BY.items():
        if options.get(option) is not None and not uses & _inputs(name.removeprefix("metrics.")):
            known = ", ".join(one for one in METRICS if uses & _inputs(one))
            raise UserError(f"{COSTS[option].spellings(option)[0]} is not in {name}; it is in {known}")


def _inputs(name: str) -> set[str]:
    """Names of inputs in the formula of a metric and in those of metrics that it names."""
    named = quantity.names_in(METRICS[name].formula) if name in METRICS and METRICS[name].formula else ()
    return {*named}.union(*map(_inputs, named))


def explained(result: Result, name: str, point: int = 0) -> Explanation:
    """The explanation of a number of one point.  Raises UserError for an unknown name or an undefined number."""
    result.check_one_kind("explain")
    one = Question(analysis=result.analysis, point=point)
    subject = f"{result.analysis.model.name} on {result.analysis.system.chip.name}"
    root, warnings = _root(result, one, name), (*result.warnings, *_ambiguous(one, name))
    return Explanation(metric=name, subject=subject, root=root, result=result, warnings=warnings)


def _operator_of(name: str) -> tuple[str, str, str] | None:
    """Stage, operator (with its block, if the name has it) and field that a name asks for; None for other numbers."""
    stage, parts = "decode", name.removeprefix("metrics.").split(".")
    if parts[0] == "stages" and len(parts) > 2 and parts[1] in STAGES:
        stage, parts = parts[1], parts[2:]
    if parts[0] != "operators" or len(parts) < 3:
        return None
    return stage, ".".join(parts[1:-1]), parts[-1]


def _ambiguous(one: Question, name: str) -> tuple[str, ...]:
    """A line for an operator that several blocks run, of which the first is explained."""
    asked = _operator_of(name)
    if asked is None:
        return ()
    stage, operator, field = asked
    first, *others = blocks_of(one, operator, stage)
    if not others:
        return ()
    named = " or ".join(f"{name.removesuffix(f'{operator}.{field}')}{block}.{operator}.{field}" for block in others)
    return (f"several kinds of layers have {operator}; explained is that of {first}; for another ask {named}",)


def _root(result: Result, one: Question, name: str) -> Node:
    word = name.removeprefix("metrics.")
    if word in METRICS:
        return _metric(result.figures, one, word)
    first, _, rest = word.partition(".")
    if first == "memory" and "." not in rest:
        return limit(result, one, rest) if rest in LIMITS else memory_node(one, rest)
    return _of_stage(one, name, word.split("."))


def _of_stage(one: Question, name: str, parts: list[str]) -> Node:
    """A number of a stage, or of an operator in it; without a stage, of the decode step."""
    asked = _operator_of(name)
    if asked is None and len(parts) == 3 and parts[0] == "stages" and parts[1] in STAGES and parts[2] in FIGURES:
        asked = parts[1], "", parts[2]
    if asked is None:
        raise unknown("number", name, names(), hint="see `llmviewer explain list`")
    stage, operator, field = asked
    if stage == "decode" and one.analysis.model.is_encoder:
        raise UserError(
            f"{name} is undefined: {one.analysis.model.name} has no decode steps; ask that of stages.prefill"
        )
    if operator:
        return operator_node(one, operator, field, stage)
    return stage_time(one, stage) if field == "time_s" else stage_figure(one, stage, field)


def _metric(figures: Figures, one: Question, name: str) -> Node:
    """A metric: a latency, a utilization, or what its formula makes of others.  Raises UserError for no value."""
    declared = METRICS[name]
    if name in LATENCIES:
        return metric_time(one, name)
    if not declared.formula:
        return utilization(one, name)
    if np.isnan(one.at(figures[name])):
        raise UserError(f"{name} is undefined: {declared.undefined or METRICS['tpot_s'].undefined}")
    named = quantity.names_in(declared.formula)
    inputs = {used: one.at(figures[used]) for used in named if used in INPUTS}
    children = tuple(_metric(figures, one, used) for used in named if used in METRICS)
    told = dict.fromkeys(INPUTS[used].source(figures) for used in inputs)
    return of_formula(name, declared.formula, children, "; ".join(told), inputs, declared.unit.symbol)
