"""Prediction errors, and intervals with a stated coverage of held-out rows."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen

#: Share of the rows below each bound: outer pair for the 95 % interval, inner pair for the 80 % one.
QUANTILE_LEVELS = (0.025, 0.10, 0.90, 0.975)


@frozen
class Errors:
    """Prediction errors, as |predicted / measured - 1| unless stated otherwise.

    mape: the mean.  bias: the median of predicted / measured - 1.
    """

    rows: int
    mape: float
    median: float
    bias: float

    def as_dict(self) -> dict[str, float]:
        """Rounded values, as profiles store them."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def errors(ratio: Array) -> Errors:
    """Errors of rows from measured / predicted, one ratio per row."""
    relative = 1.0 / ratio - 1.0
    return Errors(
        rows=len(ratio),
        mape=float(np.mean(np.abs(relative))),
        median=float(np.median(np.abs(relative))),
        bias=float(np.median(relative)),
    )


def quantiles(ratio: Array) -> tuple[float, ...]:
    """Bounds of measured / predicted at QUANTILE_LEVELS, slightly outside the sample quantiles for few rows.

    Split conformal prediction (arXiv 2107.07511): level q of n rows is the ceil((n + 1) q)-th smallest.
    """
    ordered, count = np.sort(ratio), len(ratio)
    ranks = [np.floor((count + 1) * q) if q < 0.5 else np.ceil((count + 1) * q) for q in QUANTILE_LEVELS]
    return tuple(round(float(ordered[int(np.clip(rank - 1, 0, count - 1))]), 4) for rank in ranks)


def coverage(ratio: Array, folds: Array) -> dict[str, float]:
    """Share of the rows inside the 80 % interval computed from the other folds; empty for a single fold."""
    inside = 0
    for fold in np.unique(folds):
        held_out = folds == fold
        if held_out.all():
            return {}
        _, low, high, _ = quantiles(ratio[~held_out])
        inside += int(np.sum((low <= ratio[held_out]) & (ratio[held_out] <= high)))
    return {"covered80": round(inside / len(ratio), 4)}
