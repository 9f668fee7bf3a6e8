"""TTFT and TPOT over batch size or length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.language.quantity import LATENCIES
from llmviewer.reports.plots import curves
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations over batch size or length."""
    return draw(frame(results), style)


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    x = curves.along(rows, ("batch_size", "input_len", "output_len"))
    shown = [
        (y, title) for y, title in ((y, LATENCIES[y].label) for y in ("ttft_s", "tpot_s")) if rows[y].notna().any()
    ]
    panels = [curves.of_time(rows, x, y, title) for y, title in shown]
    return curves.draw(rows, panels, style)
