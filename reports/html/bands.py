"""Bands of the 80 % intervals under the curves of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llmviewer.reports.html.charts import Json
from llmviewer.reports.plots.intervals import MAX_BANDS, Values, ends
from llmviewer.reports.report import Report

#: Opacity of a band.
PALE = 0.22


def note(report: Report, metrics: Sequence[str], curves: int) -> str:
    """Returns a sentence on the bands; empty if no metric has intervals."""
    if not any(np.isfinite(ends(report.points, metric)[0]).any() for metric in metrics):
        return ""
    if curves > MAX_BANDS:
        return f"Points state their 80 % intervals; bands of more than {MAX_BANDS} curves would hide each other."
    return "Bands: 80 % intervals of calibrated times; that of the throughput is the interval of E2E, inverted."


def words(bounds: tuple[Values, Values], show: Callable[[Any], str]) -> list[str]:
    """Returns the interval of every point in words; empty where it has none.  show: format of a value."""
    known = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
    return [f" (80 %: {show(low)} to {show(high)})" if ok else "" for low, high, ok in zip(*bounds, known, strict=True)]


def trace(colour: str, xs: Values, bounds: tuple[Values, Values]) -> list[Json]:
    """Returns the area between both bounds, to be drawn before its line; none with fewer than two known points."""
    known = np.isfinite(bounds[0]) & np.isfinite(bounds[1])
    if known.sum() < 2:
        return []
    x, low, high = xs[known], bounds[0][known], bounds[1][known]
    return [
        {
            "type": "scatter", "mode": "lines", "meta": "band", "fill": "toself", "fillcolor": colour, "opacity": PALE,
            "x": [*x.tolist(), *x[::-1].tolist()], "y": [*low.tolist(), *high[::-1].tolist()],
            "line": {"width": 0}, "hoverinfo": "skip",
        }
    ]  # fmt: skip
