"""Early exit of one point: layers that a decode step runs, and its time beside that of a model without exits."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis, analyze
from llmviewer.core.ir import Graph
from llmviewer.core.workload import Step
from llmviewer.result.describe import number
from llmviewer.result.stages import request_at, system_at, value_at
from llmviewer.techniques.sparsity.early_exit import ExitingStep, plan_of, without_exits


def exit_object(analysis: Analysis, point: int) -> dict[str, Any]:
    """The early_exit object of one point of a system with early exit.

    layers: those that a token passes.  token_layers, step_layers: how many of them a token and the deepest token of a
    decode step run (of an encoder: a sequence and the pass), means over the answer.  time_s, plain_time_s: time per
    output token after the first with and without exits (of an encoder, and of answers of one token: TTFT).
    """
    plan = plan_of(analysis.system)
    step = ExitingStep.of(plan, _last_pass(analysis, point), np.nan)
    system, request = system_at(analysis, point), request_at(analysis, point)
    plain = analyze(analysis.model, without_exits(system), request)
    own, other = _seconds(analysis, point), _seconds(plain, 0)
    return {
        "layers": len(step.runs),
        "token_layers": number(sum(float(np.max(reach)) for reach in plan.exits.reach(len(step.runs)))),
        "step_layers": number(sum(float(np.max(runs)) for runs in step.runs)),
        "time_s": number(own),
        "plain_time_s": number(other),
        "speedup": number(other / own),
    }


def _last_pass(analysis: Analysis, point: int) -> Graph:
    """The graph of the decode step of a point, or of the one pass of an encoder, before techniques change it."""
    plan = analysis.schedule
    last = np.flatnonzero(plan.point_of_pass[: plan.shown] == point)[-1:]
    return analysis.model.graph(Step(tuple(group.select(last) for group in plan.step.groups)))


def _seconds(analysis: Analysis, point: int) -> float:
    mean = float(value_at(analysis.tpot_s, point))
    return mean if np.isfinite(mean) else float(value_at(analysis.ttft_s, point))
