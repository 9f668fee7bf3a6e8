"""Factors: contributions of bandwidth, peak, options and sizes to the difference between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.core.errors import unknown
from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.why import Why
from llmviewer.reports.plots import curves, waterfall
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def frame(found: Why) -> pd.DataFrame:
    """Returns bars `name`, `start`, `change` from the metric of A through the factors to that of B."""
    changes = {share.name.replace("_", " "): share.amount for share in found.shares}
    names = [result.analysis.system.chip.name for result in found.results]
    first, second = (f"{letter}: {name}" for letter, name in zip("AB", names, strict=True))
    return waterfall.through((first, found.a), (second, found.b), changes)


def picture(found: Why, style: Style) -> Figure:
    """Plots the factors of a difference between two times.  Raises UserError for other metrics."""
    if found.metric.name not in LATENCIES:
        raise unknown("metric", found.metric.name, LATENCIES)
    title = f"{LATENCIES[found.metric.name].heading} by factor: {curves.title_of(*found.results)}"
    kinds = {result.efficiency for result in found.results}
    return waterfall.draw_steps(frame(found), style, title, efficiency=kinds)
