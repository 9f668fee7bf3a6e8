"""How far off a calibrated time may be: 80 and 95 % intervals of operators, stages and metrics.

Kernels of one fit err together, so their deviations add; different fits err apart, so theirs add in squares, unless
they come from another chip, which puts all of them off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Array, Count
from llmviewer.result.describe import number

#: Level -> where its bounds stand among profile.QUANTILES.
LEVELS: dict[str, tuple[int, int]] = {"80": (1, 2), "95": (0, 3)}
#: Metric -> published figures that say how far off it is, the nearest first.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "ttft_s": ("ttft_ms", "latency_ms"),
    "tpot_s": ("tpot_ms", "decode_tok_s", "latency_ms"),
    "e2e_s": ("latency_ms", "tpot_ms", "decode_tok_s"),
}

Pick = Callable[[Count], Array]


def levels(bounds: Array, point: int) -> dict[str, list[int | float | None]]:
    """Level -> [low, high] of one point."""
    return {level: [number(bounds[low][point]), number(bounds[high][point])] for level, (low, high) in LEVELS.items()}


@lru_cache(maxsize=4)
def _ratios(analysis: Analysis) -> dict[int, Array]:
    """Bounds of every row over its time, shape (4, passes), by the row's identity; both stages and all metrics ask."""
    assert analysis.calibration is not None
    chip = analysis.chip_per_pass()
    return {id(row): analysis.calibration.interval(row.operator, chip, row.timing) for row in analysis.evaluation.rows}


def of_row(analysis: Analysis, row: TimedOperator, pick: Pick) -> Array:
    """Bounds of the time of one operator of a stage [s], shape (4, points)."""
    return np.array([pick(row.timing.time_s * ratio) for ratio in _ratios(analysis)[id(row)]])


@lru_cache(maxsize=8)
def of_stage(analysis: Analysis, stage: str) -> Array:
    """Bounds of the time of a stage, `prefill` or `decode` [s], shape (4, points)."""
    assert analysis.calibration is not None
    pick: Pick = getattr(analysis.schedule, stage)
    off: dict[str, Array] = {}
    for row in analysis.evaluation.rows:
        deviation = (of_row(analysis, row, pick) - pick(row.timing.time_s)) * float(row.block.repeats)
        if analysis.evaluation.copying:
            deviation = deviation * _waited_for(analysis, row, pick)
        operator = row.operator
        fit = analysis.calibration.basis(operator).fit.key if operator.is_kernel else "host and link"
        off[fit] = off.get(fit, 0.0) + deviation
    signs = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    apart = np.array(list(off.values()))  # fits, bounds, points
    spread = np.sqrt((apart**2).sum(axis=0)) if analysis.calibration.fitted else np.abs(apart).sum(axis=0)
    bounds: Array = np.maximum(pick(analysis.evaluation.time_s) + signs * spread, 0.0)
    return bounds


def _waited_for(analysis: Analysis, row: TimedOperator, pick: Pick) -> Array:
    """1.0 where an operator is on the slower side of a layer whose copies run beside its kernels."""
    layer = next((one for one in analysis.evaluation.copying if one.block.name == row.block.name), None)
    if layer is None:
        return np.ones(1)
    longest = pick(layer.kernels_s) >= pick(layer.time_s)
    return np.where(longest == row.operator.is_kernel, 1.0, 0.0)


def of_metrics(analysis: Analysis) -> dict[str, Array]:
    """Bounds of TTFT, TPOT and E2E [s], shape (4, points) each.

    Of an engine what its published figures lie off, of whatever else those of the stages in proportion.
    """
    plan = analysis.schedule
    prefill = of_stage(analysis, "prefill")
    first = _served(analysis, "ttft_s", prefill / plan.prefill(analysis.evaluation.time_s))
    further = _served(analysis, "tpot_s", _of_round(analysis))
    ttft, generation = analysis.ttft_s * first, analysis.generation_s * further
    return {
        "ttft_s": ttft,
        "tpot_s": analysis.tpot_s * further,
        "e2e_s": _served(analysis, "e2e_s", (ttft + generation) / analysis.e2e_s) * analysis.e2e_s,
    }


def _of_round(analysis: Analysis) -> Array:
    """Ratios of the bounds of a round to its time: its passes run on the same kernels, and err together."""
    bounds = analysis.per_round(lambda one: of_stage(one, "decode"))
    return bounds / analysis.per_round(lambda one: one.schedule.decode(one.evaluation.time_s))


def _served(analysis: Analysis, metric: str, kernels: Array) -> Array:
    """Ratios of the bounds of a metric to its value: of the engine, or those that its kernels give."""
    assert analysis.calibration is not None
    basis, engine = "fitted" if analysis.calibration.fitted else "transferred", analysis.system.engine
    known = engine.spread(PUBLISHED[metric], basis)
    if metric == "ttft_s" and engine.batching != analysis.system.batching.name:
        known = None
    if known is None:
        return kernels
    published = np.array(known)[:, None] * np.ones(kernels.shape[1])
    if all(row.operator.is_kernel for row in analysis.evaluation.rows):
        return published
    # of models on the device alone: what copies and the host may be off comes on top
    lower = np.array([True, True, False, False])[:, None]
    return np.where(lower, np.minimum(published, kernels), np.maximum(published, kernels))
