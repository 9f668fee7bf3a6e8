"""Time over memory bandwidth, for hypothetical chips that differ only in their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import curves, length
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations over the bandwidth of their chips."""
    published = {name: float(one.to_dict()["provenance"]["figures"]["bandwidth_bytes_per_s"]["value"])
                 for name, one in curves.each(results)}  # fmt: skip
    return draw(frame(results), style, published)


def draw(rows: pd.DataFrame, style: Style, published: dict[str, float] | None = None) -> Figure:
    """Draws rows of `frame`.

    published: bandwidth of each configuration's real chip [byte/s], marked by a ring if it is among the points.
    """
    figure = length.draw(rows, style, "bandwidth_bytes_per_s", [_ring(style)] if published else [])
    for axes, y in zip(figure.axes, ("prefill_time_s", "decode_time_s"), strict=True):
        scale = curves.of_time(rows, "bandwidth_bytes_per_s", y, "").scale
        for name, real in (published or {}).items():
            here = rows[(rows["configuration"] == name) & np.isclose(rows["bandwidth_bytes_per_s"], real)]
            axes.scatter(
                here["bandwidth_bytes_per_s"] / 1e9, here[y] / scale, s=12.0 * style.size.text, facecolors="none",
                edgecolors=style.theme.ink, linewidths=1.2, zorder=5,
            )  # fmt: skip
    return figure


def _ring(style: Style) -> Line2D:
    """Returns the legend entry of the rings."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="", marker="o", label="bandwidth of the real chip", markerfacecolor="none",
        markeredgecolor=style.theme.ink, markersize=style.size.text,
    )  # fmt: skip
