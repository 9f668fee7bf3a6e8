"""Any number of a result as a tree, by the name that it has in the JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmviewer.core.errors import UserError, unknown
from llmviewer.result.explanation.figures import OPERATOR_FIGURES, STAGE_FIGURES, blocks_of, operator_node, stage_figure
from llmviewer.result.explanation.latencies import metric_time
from llmviewer.result.explanation.limits import LIMITS, limit
from llmviewer.result.explanation.memory import NAMES, memory_node
from llmviewer.result.explanation.metrics import Question, stage_time
from llmviewer.result.explanation.node import SCHEMA, Node, evaluated, of_formula
from llmviewer.result.explanation.utilization import utilization
from llmviewer.result.result import Result

TIMES = ("ttft_s", "tpot_s", "e2e_s")
#: Rate -> its formula.
RATES = {
    "output_tokens_per_s": "batch_size * output_len / e2e_s",
    "output_tokens_per_s_per_user": "output_len / e2e_s",
    "output_tokens_per_s_per_device": "batch_size * output_len / e2e_s / devices",
}
UTILIZATIONS = ("prefill_mfu", "decode_mbu")
STAGES = ("prefill", "decode")
FIGURES = ("time_s", *STAGE_FIGURES)
#: Beginnings of the names of an operator's numbers; without a block, the first one that runs it is meant.
OPERATORS = (
    "operators.NAME",
    "operators.BLOCK.NAME",
    "stages.prefill.operators.NAME",
    "stages.prefill.operators.BLOCK.NAME",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The tree of one number.  metric: its name as asked.  subject: the model and the chip."""

    metric: str
    subject: str
    root: Node
    warnings: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The explained number, in the unit of the root."""
        return self.root.value

    def evaluated(self) -> float:
        """The number by the formulas of the tree."""
        return evaluated(self.root)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": SCHEMA, **self.root.to_dict(), "warnings": list(self.warnings)}


def names() -> tuple[str, ...]:
    """Names of the numbers that can be explained; NAME stands for an operator, BLOCK for a kind of layer."""
    return (
        *TIMES,
        *RATES,
        *UTILIZATIONS,
        *(f"memory.{name}" for name in (*NAMES, *LIMITS)),
        *(f"stages.{stage}.{figure}" for stage in STAGES for figure in FIGURES),
        *(f"{where}.{figure}" for where in OPERATORS for figure in OPERATOR_FIGURES),
    )


def explained(result: Result, name: str, point: int = 0) -> Explanation:
    """The explanation of a number of one point.  Raises UserError for an unknown name or an undefined number."""
    one = Question(analysis=result.analysis, point=point)
    subject = f"{result.analysis.model.name} on {result.analysis.system.chip.name}"
    root, warnings = _root(result, one, name), (*result.warnings, *_ambiguous(one, name))
    return Explanation(metric=name, subject=subject, root=root, warnings=warnings)


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
    if word in TIMES:
        return metric_time(one, word)
    if word in RATES:
        return _rate(one, word)
    if word in UTILIZATIONS:
        return utilization(one, word)
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


def _rate(one: Question, name: str) -> Node:
    """Output tokens per second of the batch, of a user or of a device."""
    request, formula = one.analysis.request, RATES[name]
    sizes = {
        "batch_size": one.at(request.batch_size),
        "output_len": one.at(request.output_len),
        "devices": float(one.analysis.system.parallelism.devices),
    }
    values = {size: value for size, value in sizes.items() if size in formula}
    source = "sizes of the request, devices of --tensor-parallel-size and its like"
    return of_formula(name, formula, (metric_time(one, "e2e_s"),), source, values, "1/s")
