"""Time of prefill and of a decode step over prompt length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports.plots import curves
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations over prompt length."""
    return draw(frame(results), style)


def draw(rows: pd.DataFrame, style: Style, x: str = "input_len", more: Sequence[Artist] = ()) -> Figure:
    """Draws rows of `frame`.  x: column of the x axis.  more: further legend entries."""
    stages = (("prefill_time_s", "Prefill time"), ("decode_time_s", "Decode step time"))
    return curves.draw(rows, [curves.of_time(rows, x, y, title) for y, title in stages], style, more)
