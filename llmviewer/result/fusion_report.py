"""Fusion report of one point: which fusion rules applied in its forward passes, which did not, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.system import RuleOutcome
from llmviewer.core.counts import Array
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Step


def fusion_outcomes(analysis: Analysis, point: int) -> list[dict[str, Any]]:
    """Outcome of every fusion rule and candidate: rule, block, operators, kernel, prefill, decode, reason."""
    if all(applied.explain is None for applied in analysis.system.passes):
        return []
    plan = analysis.schedule
    passes = np.flatnonzero(plan.point_of_pass[: plan.shown] == point)
    chip = analysis.system.chip
    if chip.points > 1:
        chip = chip.spread(np.full(len(passes), float(point)))
    graph: Graph = analysis.model.graph(Step(tuple(group.select(passes) for group in plan.step.groups)))
    found: list[RuleOutcome] = []
    for applied in analysis.system.passes:
        if applied.explain is not None:
            found += applied.explain(graph, chip)
        graph = applied.make(chip)(graph)
    return [_row(outcome, len(passes)) for outcome in found]


def assumptions(rows: list[dict[str, Any]], chip: str) -> list[str]:
    """Assumptions of the result that come from rules applied without published chip figures."""
    if not any(row["assumed"] for row in rows):
        return []
    return [f"on-chip memory per compute unit: unknown for {chip}, tiles of fused operators are assumed to fit"]


def _row(outcome: RuleOutcome, passes: int) -> dict[str, Any]:
    """One row; the last pass is the decode step, the passes before it are the prefill."""
    where: Array = np.broadcast_to(np.asarray(outcome.where, dtype=np.float64), (passes,))
    return {
        "rule": outcome.rule,
        "block": outcome.block,
        "operators": list(outcome.operators),
        "kernel": outcome.kernel,
        "prefill": _frequency(where[:-1]),
        "decode": _frequency(where[-1:]),
        "reason": outcome.reason,
        "assumed": outcome.assumed,
    }


def _frequency(where: Array) -> str:
    share = float(np.mean(where))
    return "always" if share == 1.0 else "never" if share == 0.0 else "in some passes"
