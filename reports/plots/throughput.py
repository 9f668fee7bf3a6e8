"""Output tokens per second of all sequences over batch size or length, averaged over E2E."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    return curves.draw(rows, [curves.Curve(x=x, y="output_tokens_per_s", title="Throughput", unit="token/s")], style)
