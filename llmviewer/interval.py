"""How far off a calibrated time may be: 80 and 95 % intervals of operators, stages and metrics.

Kernels of one fit err together, so their deviations add; different fits err apart, so theirs add in squares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from llmviewer.analysis import Analysis
from llmviewer.describe import number
from llmviewer.evaluation import Row
from llmviewer.ir import Array, Count

#: Level -> where its bounds stand among profile.QUANTILES.
LEVELS: dict[str, tuple[int, int]] = {"80": (1, 2), "95": (0, 3)}

Pick = Callable[[Count], Array]


def levels(bounds: Array, point: int) -> dict[str, list[int | float | None]]:
    """Level -> [low, high] of one point."""
    return {level: [number(bounds[low][point]), number(bounds[high][point])] for level, (low, high) in LEVELS.items()}


@lru_cache(maxsize=1)
def _ratios(analysis: Analysis) -> dict[int, Array]:
    """Bounds of every row over its time, shape (4, passes), by the row's identity; both stages and all metrics ask."""
    assert analysis.calibration is not None
    chip = analysis.chip_per_pass()
    return {
        id(row): analysis.calibration.interval(row.operator, chip, row.timing) for row in analysis.evaluation.rows
    }


def of_row(analysis: Analysis, row: Row, pick: Pick) -> Array:
    """Bounds of the time of one operator of a stage [s], shape (4, points)."""
    return np.array([pick(row.timing.time_s * ratio) for ratio in _ratios(analysis)[id(row)]])


@lru_cache(maxsize=2)
def of_stage(analysis: Analysis, stage: str) -> Array:
    """Bounds of the time of a stage, `prefill` or `decode` [s], shape (4, points)."""
    assert analysis.calibration is not None
    pick: Pick = getattr(analysis.schedule, stage)
    off: dict[str, Array] = {}
    for row in analysis.evaluation.rows:
        deviation = (of_row(analysis, row, pick) - pick(row.timing.time_s)) * float(row.block.times)
        fit = analysis.calibration.basis(row.operator).fit.key
        off[fit] = off.get(fit, 0.0) + deviation
    spread = np.sqrt(sum(deviation**2 for deviation in off.values()))
    signs = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
    bounds: Array = np.maximum(pick(analysis.evaluation.time_s) + signs * spread, 0.0)
    return bounds


def of_metrics(analysis: Analysis) -> dict[str, Array]:
    """Bounds of TTFT, TPOT and E2E [s], shape (4, points) each: those of the stages, in proportion."""
    plan = analysis.schedule
    prefill, decode = (of_stage(analysis, stage) for stage in ("prefill", "decode"))
    ttft = analysis.ttft_s * prefill / plan.prefill(analysis.evaluation.time_s)
    ratio = decode / plan.decode(analysis.evaluation.time_s)
    return {"ttft_s": ttft, "tpot_s": analysis.tpot_s * ratio, "e2e_s": ttft + analysis.generation_s * ratio}
