"""Any number of a result as a tree, by the name that it has in the JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llmviewer.core.errors import unknown
from llmviewer.result.explanation.figures import OPERATOR_FIGURES, STAGE_FIGURES, blocks_of, operator_node, stage_figure
from llmviewer.result.explanation.latencies import metric_time
from llmviewer.result.explanation.limits import LIMITS, limit
from llmviewer.result.explanation.memory import NAMES, memory_node
from llmviewer.result.explanation.metrics import Question, stage_time
from llmviewer.result.explanation.node import SCHEMA, Node, evaluated
from llmviewer.result.explanation.utilization import utilization
from llmviewer.result.result import Result

TIMES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("output_tokens_per_s", "output_tokens_per_s_per_user", "output_tokens_per_s_per_device")
UTILIZATIONS = ("prefill_mfu", "decode_mbu")
STAGES = ("prefill", "decode")
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
        return {"schema": SCHEMA, **self.root.to_dict()}


def names() -> tuple[str, ...]:
    """Names of the numbers that can be explained; NAME stands for an operator, BLOCK for a kind of layer."""
    return (
        *TIMES,
        *RATES,
        *UTILIZATIONS,
        *(f"memory.{name}" for name in (*NAMES, *LIMITS)),
        *(f"stages.{stage}.{figure}" for stage in STAGES for figure in ("time_s", *STAGE_FIGURES)),
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
    if parts[0] == "stages" and len(parts) == 3 and parts[1] in STAGES:
        if parts[2] == "time_s":
            return stage_time(one, parts[1])
        if parts[2] in STAGE_FIGURES:
            return stage_figure(one, parts[1], parts[2])
    asked = _operator_of(name)
    if asked is None:
        raise unknown("number", name, names(), hint="see `llmviewer explain list`")
    stage, operator, field = asked
    return operator_node(one, operator, field, stage)


def _rate(one: Question, name: str) -> Node:
    """Output tokens per second of the batch, of a user or of a device."""
    own = one.analysis
    batch, output = (
        float(np.asarray(column, dtype=np.float64).reshape(-1)[one.point if np.size(column) > 1 else 0])
        for column in (own.request.batch_size, own.request.output_len)
    )
    e2e = metric_time(one, "e2e_s")
    values = {"batch_size": batch, "output_len": output}
    formula = "batch_size * output_len / e2e_s"
    if name == "output_tokens_per_s_per_user":
        formula, values = "output_len / e2e_s", {"output_len": output}
    if name == "output_tokens_per_s_per_device":
        values = {**values, "devices": float(own.system.parallelism.devices)}
        formula = f"{formula} / devices"
    probe = Node(name=name, value=0.0, unit="1/s", formula=formula, values=values, children=(e2e,))
    source = "sizes of the request, devices of --tensor-parallel-size and its like"
    return Node(
        name=name, value=evaluated(probe), unit="1/s", formula=formula, values=values, source=source, children=(e2e,)
    )
