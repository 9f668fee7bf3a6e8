"""Which rules of a technique fired in the passes of one point, which not, and why: what results show of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.system import RuleOutcome
from llmviewer.core.counts import Array
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Step


def fired(analysis: Analysis, point: int) -> list[dict[str, Any]]:
    """One row per rule and candidate: rule, block, operators, kernel, prefill, decode, reason."""
    if all(applied.explain is None for applied in analysis.system.passes):
        return []
    plan = analysis.schedule
    passes = np.flatnonzero(plan.owners[: plan.shown] == point)
    chip = analysis.system.chip
    if chip.points > 1:
        chip = chip.spread(np.full(len(passes), float(point)))
    graph: Graph = analysis.model.graph(Step(tuple(group.some(passes) for group in plan.step.groups)))
    found: list[RuleOutcome] = []
    for applied in analysis.system.passes:
        if applied.explain is not None:
            found += applied.explain(graph, chip)
        graph = applied.make(chip)(graph)
    return [_row(one, len(passes)) for one in found]


def assumptions(rows: list[dict[str, Any]], chip: str) -> list[str]:
    """What a result must say of rules that fired on an assumption."""
    if not any(row["assumed"] for row in rows):
        return []
    return [f"on-chip memory of a unit: unknown for {chip}, tiles of fused operators are taken to fit"]


def _row(one: RuleOutcome, passes: int) -> dict[str, Any]:
    """The last pass is the decode step, those before are the prefill."""
    where: Array = np.broadcast_to(np.asarray(one.where, dtype=np.float64), (passes,))
    return {
        "rule": one.rule,
        "block": one.block,
        "operators": list(one.operators),
        "kernel": one.kernel,
        "prefill": _often(where[:-1]),
        "decode": _often(where[-1:]),
        "reason": one.reason,
        "assumed": one.assumed,
    }


def _often(where: Array) -> str:
    share = float(np.mean(where))
    return "always" if share == 1.0 else "never" if share == 0.0 else "in some passes"
