"""Length against time: prefill of the prompt, and the decode step that sees it."""

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
    """The picture of some configurations, points along the length of the prompt."""
    return draw(frame(results), style)


def draw(rows: pd.DataFrame, style: Style, x: str = "input_len", more: Sequence[Artist] = ()) -> Figure:
    """rows: as of Result.to_frame(), with `configuration`.  x: the column along which points lie.  more: entries
    of the key."""
    stages = (("prefill_time_s", "Prefill"), ("decode_time_s", "Decode step"))
    return curves.draw(rows, [curves.of_time(rows, x, y, title) for y, title in stages], style, more)
