"""Tokens per second per user against those per device, with the Pareto frontier."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import curves, drawing, ticks
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style, colour

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

USER, DEVICE = "output_tokens_per_s_per_user", "output_tokens_per_s_per_device"


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations over batch size or length."""
    return draw(frame(results), style)


def frontier(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the points that fit in memory and are not dominated, in decreasing rate per user."""
    fitting = rows[rows["fits"]].sort_values([USER, DEVICE], ascending=False)
    best = fitting[DEVICE].cummax().shift(fill_value=-np.inf)
    return fitting[fitting[DEVICE] > best]


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    figure, (axes,) = style.figure()
    x = curves.along(rows, ("batch_size", "input_len", "output_len"))
    best = frontier(rows)
    axes.plot(
        best[USER], best[DEVICE], color=style.theme.faint, linewidth=5.0, alpha=0.6, zorder=1, label="Pareto frontier"
    )
    panel = curves.panel(rows, curves.Curve(x=USER, y=DEVICE, title="Throughput per device", unit="token/s"), x)
    drawing.draw(axes, panel, style)
    axes.set_xlabel(curves.axis_label(rows, "Throughput per user", "token/s"))
    style.title(figure, curves.common_title(rows, x))
    entries = [axes.lines[0]] if len(best) > 1 else []
    style.legend_below(figure, [*entries, *drawing.key([panel], style)], 1)
    style.settle(figure)
    _name(figure, rows, x, style)
    return figure


def _name(figure: Figure, rows: pd.DataFrame, x: str, style: Style) -> None:
    """Labels points with their batch size, where there is room."""
    space = ticks.Space(axes=figure.axes[0])
    space.take_points(rows[[USER, DEVICE]].to_numpy(float), np.full(len(rows), style.size.text * 0.3))
    found = []
    for at, (_, unsorted) in enumerate(rows.groupby("configuration", sort=False)):
        own = unsorted.sort_values(x)
        for one, other in pairwise(zip(own[USER], own[DEVICE], strict=True)):
            space.take_line(one, other)
        points = zip(own[x], own[USER], own[DEVICE], strict=True)
        found += [ticks.Label(words=f"{int(n):,}", x=a, y=b, colour=colour(at)) for n, a, b in points]
    ticks.place(space, found, style.size.text * 0.75, ticks.RINGS[:1])
