"""Errors of predictions, and intervals that cover a stated share of what was not fitted on."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from llmviewer.core.counts import Array

#: Shares of the rows below each bound: of the 95 % interval, of the 80 % one.
LEVELS = (0.025, 0.10, 0.90, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far predictions are from measurements; |predicted / measured - 1| unless said otherwise.

    bias: the median of predicted / measured - 1.
    """

    rows: int
    mape: float
    median: float
    bias: float

    def as_dict(self) -> dict[str, float]:
        """As profiles keep it."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def errors(ratio: Array) -> Errors:
    """ratio: measured / predicted, one per row."""
    off = 1.0 / ratio - 1.0
    return Errors(
        rows=len(ratio),
        mape=float(np.mean(np.abs(off))),
        median=float(np.median(np.abs(off))),
        bias=float(np.median(off)),
    )


def quantiles(ratio: Array) -> tuple[float, ...]:
    """Bounds of measured / predicted at LEVELS, a little outside the sample's own as few rows demand.

    Split conformal prediction (arXiv 2107.07511): of n rows the level q takes the ceil((n + 1) q)-th.
    """
    ordered, count = np.sort(ratio), len(ratio)
    places = [np.floor((count + 1) * q) if q < 0.5 else np.ceil((count + 1) * q) for q in LEVELS]
    return tuple(round(float(ordered[int(np.clip(place - 1, 0, count - 1))]), 4) for place in places)


def covered(ratio: Array, folds: Array) -> dict[str, float]:
    """Share of the rows inside the 80 % interval that the rows of other folds give; nothing where there is one fold."""
    inside = 0
    for fold in np.unique(folds):
        held = folds == fold
        if held.all():
            return {}
        _, low, high, _ = quantiles(ratio[~held])
        inside += int(np.sum((low <= ratio[held]) & (ratio[held] <= high)))
    return {"covered80": round(inside / len(ratio), 4)}
