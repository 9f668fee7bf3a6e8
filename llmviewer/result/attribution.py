"""What a metric is made of: seconds of every operator and of every other term, which add up to the metric."""

from __future__ import annotations

from typing import Any

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import unknown

ATTRIBUTED_METRICS = ("ttft_s", "tpot_s", "e2e_s")
#: Waiting for others, what drafts, a pipeline's overlap: all that is no operator of the model's own passes.
REST = "waiting, drafts, overlap"


def attributed(analysis: Analysis, metric: str, point: int) -> list[dict[str, Any]]:
    """Rows of `name`, `kind` and `seconds`; the kinds "engine" and "rest" are no operators.

    What runs beside kernels is counted once: copies that hide behind them stand as a negative term.
    """
    if metric not in ATTRIBUTED_METRICS:
        raise unknown("metric", metric, ATTRIBUTED_METRICS)
    found: dict[tuple[str, str], float] = {}
    for name, kind, of in _terms(analysis):
        seconds = sum(float(part[point]) for part in _parts(analysis, metric, of))
        found[name, kind] = found.get((name, kind), 0.0) + seconds
    whole = float(getattr(analysis, metric)[point])
    rest = whole - sum(found.values())
    if abs(rest) > 1e-9 * abs(whole):
        found[REST, "rest"] = rest
    return [{"name": name, "kind": kind, "seconds": seconds} for (name, kind), seconds in found.items() if seconds]


def _terms(analysis: Analysis) -> list[tuple[str, str, Count]]:
    """Name, kind and seconds of each pass, through all stages of a pipeline."""
    stages = analysis.evaluation.stages or (analysis.evaluation,)
    return [term for stage in stages for term in _of_stage(stage)]


def _of_stage(totals: Evaluation) -> list[tuple[str, str, Count]]:
    """Operators over all their layers, what an engine adds, hidden copies."""
    rows = [(r.operator.name, r.operator.kind.value, r.timing.time_s * float(r.block.repeats)) for r in totals.rows]
    hidden = [
        ("copies beside kernels", "copy", -1.0 * layer.hidden_s * float(layer.block.repeats)) for layer in totals.copying
    ]
    return [*rows, *((name, "engine", seconds) for name, seconds in totals.served), *hidden]


def _parts(analysis: Analysis, metric: str, of: Count) -> list[Array]:
    """What a term takes of the metric: of prefill, of generation, or of both."""
    parts = []
    if metric != "tpot_s":
        parts.append(analysis.schedule.prefill(of))
    if metric != "ttft_s":
        generated = _generated(analysis, of)
        parts.append(generated / analysis.schedule.tokens if metric == "tpot_s" else generated)
    return parts


def _generated(analysis: Analysis, of: Count) -> Array:
    """Seconds of a term over all real decode steps; where those were too many to keep, in proportion to the one
    shown."""
    plan = analysis.schedule
    if analysis.read_bytes is None:
        own = plan.generated(of)
    else:
        own = plan.decode(of) * plan.generated(analysis.time_s) / plan.decode(analysis.evaluation.time_s)
    return analysis.system.generation.per_token(own, [0.0 * own for _ in analysis.drafts])
