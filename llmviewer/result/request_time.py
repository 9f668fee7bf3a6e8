"""Time of a request by stage and operator over all passes, and the seconds that add up to a metric."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import LATENCIES
from llmviewer.result.stages import value_at


@frozen
class StageTime:
    """Time that a request spends in prefill or in decode.

    time_s: all of it, waiting included [s].  passes: forward passes of the model, with speculation their expected
    number.  operators: (block, operator) -> seconds over all layers and passes.  layers: block -> number of layers.
    hidden_s: block -> seconds by which its copies and kernels overlap, over all layers and passes.  drafts: draft
    model -> seconds of its own passes.  Stages of a pipeline that run at once take longer together than the request
    does; `operators`, `hidden_s` and `drafts` then are their times times `factor`, which is 1.0 otherwise.
    """

    time_s: float
    passes: float
    operators: dict[tuple[str, str], float]
    layers: dict[str, float]
    hidden_s: dict[str, float]
    drafts: dict[str, float]
    factor: float = 1.0


def stage_time(analysis: Analysis, stage: str, point: int) -> StageTime:
    """The time of one point in `prefill` or `decode`."""
    waves = value_at(analysis.in_flight, point) if analysis.system.block and stage == "decode" else 1.0

    def summed(pass_s: Count) -> float:
        return waves * float(over_passes(analysis, stage, pass_s)[point])

    operators: dict[tuple[str, str], float] = {}
    layers: dict[str, float] = {}
    hidden: dict[str, float] = {}
    engine_s = 0.0
    for evaluation in analysis.evaluation.each_stage:
        own = {row.block.name: float(row.block.repeats) for row in evaluation.rows}
        layers |= {name: layers.get(name, 0.0) + repeats for name, repeats in own.items()}
        for row in evaluation.rows:
            key = row.block.name, row.operator.name
            operators[key] = operators.get(key, 0.0) + summed(row.timing.time_s) * own[row.block.name]
        for layer in evaluation.copying:
            hidden[layer.block.name] = summed(layer.hidden_s) * float(layer.block.repeats)
        engine_s += sum(summed(seconds) for _, seconds in evaluation.served)
    found = StageTime(
        time_s=value_at(analysis.ttft_s if stage == "prefill" else analysis.generation_s, point),
        passes=waves * passes(analysis, stage, point),
        operators=operators,
        layers=layers,
        hidden_s=hidden,
        drafts=drafts(analysis, stage, point),
    )
    return _within(found, engine_s)


def _within(found: StageTime, engine_s: float) -> StageTime:
    """The stage with the times of its parts scaled to its own if they are longer.  engine_s: the engine's own time."""
    parts_s = sum(found.operators.values()) - sum(found.hidden_s.values()) + sum(found.drafts.values()) + engine_s
    if parts_s <= found.time_s * (1.0 + 1e-9):
        return found
    factor = found.time_s / parts_s
    return replace(
        found,
        operators={key: seconds * factor for key, seconds in found.operators.items()},
        hidden_s={name: seconds * factor for name, seconds in found.hidden_s.items()},
        drafts={name: seconds * factor for name, seconds in found.drafts.items()},
        factor=factor,
    )


def passes(analysis: Analysis, stage: str, point: int) -> float:
    """Forward passes of the model in a stage of the request; with speculation the expected number of rounds."""
    if stage == "prefill":
        return float(analysis.schedule.prefill(1.0)[point])
    steps = analysis.schedule.decode_sum(1.0)
    return float(analysis.system.generation.per_token(steps, [0.0 * steps for _ in analysis.drafts])[point])


def drafts(analysis: Analysis, stage: str, point: int) -> dict[str, float]:
    """Draft model -> seconds of its own passes in a stage of the request."""
    generation = analysis.system.generation
    found: dict[str, float] = {}
    for at, (draft, own) in enumerate(analysis.drafts):
        if stage == "prefill":
            seconds = value_at(own.own_prefill_s, point) if draft.caches else 0.0
        else:
            nothing = np.zeros(analysis.schedule.points)
            each = [
                own.schedule.decode_sum(own.step_s) if one == at else nothing for one in range(len(analysis.drafts))
            ]
            seconds = float(generation.per_token(nothing, each)[point])
        found[draft.name] = found.get(draft.name, 0.0) + seconds
    return found


def drafts_of_round(analysis: Analysis, point: int) -> dict[str, float]:
    """Draft model -> seconds of its passes in the round whose verification the decode stage shows."""
    found: dict[str, float] = {}
    for draft, own in analysis.drafts:
        seconds = value_at(draft.passes, point) * float(own.schedule.decode(own.step_s)[point])
        found[draft.name] = found.get(draft.name, 0.0) + seconds
    return found


ATTRIBUTED_METRICS = tuple(LATENCIES)
#: The difference between the metric and the terms of the model's own passes: queueing, draft models, pipeline overlap.
REMAINDER = "waiting, drafts, overlap"


def attribution_rows(analysis: Analysis, metric: str, point: int) -> list[dict[str, Any]]:
    """Rows of `name`, `kind` and `seconds`; rows of kind "engine" and "rest" are not operators.

    The part of a copy that overlaps with kernels is subtracted by a negative row of kind "copy".
    """
    if metric not in ATTRIBUTED_METRICS:
        raise unknown("metric", metric, ATTRIBUTED_METRICS)
    seconds_of: dict[tuple[str, str], float] = {}
    terms = (term for stage in analysis.evaluation.each_stage for term in _stage_terms(stage))
    for name, kind, pass_s in terms:
        seconds = sum(float(part[point]) for part in _contributions(analysis, metric, pass_s))
        seconds_of[name, kind] = seconds_of.get((name, kind), 0.0) + seconds
    if analysis.towers and metric != "tpot_s":
        seconds_of["vision tower", "images"] = value_at(analysis.images_s, point)
    whole = float(getattr(analysis, metric)[point])
    rest = whole - sum(seconds_of.values())
    if abs(rest) > 1e-9 * abs(whole):
        seconds_of[REMAINDER, "rest"] = rest
    return [{"name": name, "kind": kind, "seconds": seconds} for (name, kind), seconds in seconds_of.items() if seconds]


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
