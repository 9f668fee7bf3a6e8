"""Attribution of a metric: seconds of every operator and of every other term; they add up to the metric."""

from __future__ import annotations

from typing import Any

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import unknown
from llmviewer.language.quantity import LATENCIES

ATTRIBUTED_METRICS = tuple(LATENCIES)
#: The difference between the metric and the terms of the model's own passes: queueing, draft models, pipeline overlap.
REMAINDER = "waiting, drafts, overlap"


def attribution_rows(analysis: Analysis, metric: str, point: int) -> list[dict[str, Any]]:
    """Rows of `name`, `kind` and `seconds`; rows of kind "engine" and "rest" are not operators.

    The part of a copy that overlaps with kernels is subtracted by a negative row of kind "copy".
    """
    if metric not in ATTRIBUTED_METRICS:
        raise unknown("metric", metric, ATTRIBUTED_METRICS)
    found: dict[tuple[str, str], float] = {}
    for name, kind, pass_s in _terms(analysis):
        seconds = sum(float(part[point]) for part in _contributions(analysis, metric, pass_s))
        found[name, kind] = found.get((name, kind), 0.0) + seconds
    whole = float(getattr(analysis, metric)[point])
    rest = whole - sum(found.values())
    if abs(rest) > 1e-9 * abs(whole):
        found[REMAINDER, "rest"] = rest
    return [{"name": name, "kind": kind, "seconds": seconds} for (name, kind), seconds in found.items() if seconds]


def _terms(analysis: Analysis) -> list[tuple[str, str, Count]]:
    """Name, kind and seconds per forward pass of every term, over all pipeline stages."""
    stages = analysis.evaluation.stages or (analysis.evaluation,)
    return [term for stage in stages for term in _stage_terms(stage)]


def _stage_terms(totals: Evaluation) -> list[tuple[str, str, Count]]:
    """Terms of one pipeline stage: operators over all their layers, engine time, overlapped copies."""
    rows = [(r.operator.name, r.operator.kind.value, r.timing.time_s * float(r.block.repeats)) for r in totals.rows]
    hidden = [
        ("copies beside kernels", "copy", -1.0 * layer.hidden_s * float(layer.block.repeats))
        for layer in totals.copying
    ]
    return [*rows, *((name, "engine", seconds) for name, seconds in totals.served), *hidden]


def _contributions(analysis: Analysis, metric: str, pass_s: Count) -> list[Array]:
    """Seconds that a term adds to the metric in prefill, in decode, or in both; `pass_s`: seconds per pass."""
    parts = []
    if metric != "tpot_s":
        parts.append(over_passes(analysis, "prefill", pass_s))
    if metric != "ttft_s":
        generated = over_passes(analysis, "decode", pass_s)
        parts.append(generated / analysis.schedule.tokens if metric == "tpot_s" else generated)
    return parts


def over_passes(analysis: Analysis, stage: str, pass_s: Count) -> Array:
    """Seconds of a term over all passes of `prefill` or of the real decode steps, per point [s].

    pass_s: seconds per pass.  If the steps were too many to keep, the term of the decode step shown is scaled to all
    of them.
    """
    plan = analysis.schedule
    if stage == "prefill":
        return plan.prefill(pass_s)
    if analysis.passes.is_whole:
        own = plan.decode_sum(pass_s)
    else:
        own = plan.decode(pass_s) * plan.decode_sum(analysis.passes.time_s) / plan.decode(analysis.evaluation.time_s)
    return analysis.system.generation.per_token(own, [0.0 * own for _ in analysis.drafts])
