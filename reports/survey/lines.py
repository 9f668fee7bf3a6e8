"""Curves with one line per series, distinct in colour, marker and dashes, and axes with plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import ticks
from llmviewer.reports.plots.style import Style, colour, dashes, marker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

#: Width of a scale [decade] above which only powers of ten have ticks.
WIDE = 2.2


def curves(axes: Axes, frame: pd.DataFrame, names: tuple[str, str, str], style: Style) -> None:
    """Draws one line per series.  names: columns of x, y and series."""
    across, up, series = names
    for at, (name, rows) in enumerate(frame.groupby(series, sort=False)):
        axes.plot(
            rows[across], rows[up], label=str(name), color=colour(at), linestyle=dashes(at), marker=marker(at),
            markersize=0.5 * style.size.text, linewidth=1.3,
        )  # fmt: skip


def log(axes: Axes, across: str, up: str) -> None:
    """Sets log scales, labels and plain tick numbers; call it after drawing the curves."""
    axes.set(xscale="log", yscale="log")
    labelled(axes, across, up)
    for axis in (axes.xaxis, axes.yaxis):
        plain(axis)


def plain(axis: Axis) -> None:
    """Sets plain numbers as ticks of a log scale; 1, 2 and 5 of each decade if there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0,) if np.log10(high / low) > WIDE else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10.0, subs=subs, numticks=20))
    axis.set_major_formatter(ticks.plain)
    axis.set_minor_formatter(NullFormatter())


def labelled(axes: Axes, across: str, up: str) -> None:
    """Sets the labels of both axes."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def tagged(axes: Axes, words: str, style: Style) -> None:
    """Sets the heading of one of several axes."""
    axes.set_title(words, fontsize=style.size.text, color=style.theme.ink, loc="left")
