"""Time over memory bandwidth, for hypothetical chips that differ only in their memory."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.plots import curves, length, ticks
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style, colour

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

X = "bandwidth_bytes_per_s"


def picture(results: curves.Results, style: Style, target_s: float | None = None) -> Figure:
    """Plots configurations over the bandwidth of their chips.  target_s: time of a decode step to reach [s]."""
    published = {name: float(one.to_dict()["provenance"]["figures"]["bandwidth_bytes_per_s"]["value"])
                 for name, one in curves.each(results)}  # fmt: skip
    return draw(frame(results), style, published, target_s)


def draw(
    rows: pd.DataFrame, style: Style, published: dict[str, float] | None = None, target_s: float | None = None
) -> Figure:
    """Draws rows of `frame`.

    published: bandwidth of each configuration's real chip [byte/s], marked by a ring if it is among the points.
    target_s: time of a decode step [s], a line with the bandwidth at which each configuration reaches it.
    """
    more = [_ring(style)] if published else []
    if target_s is not None:
        more.append(_target(f"target of {ticks.plain(1e3 * target_s)} ms", style))
    figure = length.draw(rows, style, X, more)
    for axes, y in zip(figure.axes, ("prefill_time_s", "decode_time_s"), strict=True):
        scale = curves.of_time(rows, X, y, "").scale
        for name, real in (published or {}).items():
            here = rows[(rows["configuration"] == name) & np.isclose(rows[X], real)]
            axes.scatter(
                here[X] / 1e9, here[y] / scale, s=12.0 * style.size.text, facecolors="none",
                edgecolors=style.theme.ink, linewidths=1.2, zorder=5,
            )  # fmt: skip
    if target_s is not None:
        _draw_target(figure.axes[1], rows, target_s, style)
    return figure


def reached(rows: pd.DataFrame, target_s: float) -> dict[str, float]:
    """Returns the least bandwidth [byte/s] at which a decode step takes the target, for configurations that reach it.

    Between the points, time is interpolated on logarithmic axes.
    """
    found = {}
    for name, own in rows.groupby("configuration", sort=False):
        times = own.sort_values(X)[["decode_time_s", X]].to_numpy(float)
        slow, fast = times[times[:, 0] > target_s], times[times[:, 0] <= target_s]
        if len(slow) and len(fast):
            ends = np.log(np.stack([fast[0], slow[-1]]))
            found[str(name)] = float(np.exp(np.interp(np.log(target_s), ends[:, 0], ends[:, 1])))
    return found


def _draw_target(axes: Axes, rows: pd.DataFrame, target_s: float, style: Style) -> None:
    """Draws the target across the panel, and a line with a value down to the axis where a configuration reaches it."""
    scale = curves.of_time(rows, X, "decode_time_s", "").scale
    level, (low, high) = target_s / scale, axes.get_ylim()
    log = axes.get_yscale() == "log"
    axes.set_ylim(min(low, 0.8 * level if log else low), max(high, 1.2 * level))
    axes.axhline(level, color=style.theme.ink, linewidth=1.0, linestyle="--", zorder=1)
    order, space = list(dict.fromkeys(rows["configuration"])), ticks.Space(axes=axes)
    points = rows[[X, "decode_time_s"]].to_numpy(float) / (1e9, scale)
    space.take_points(points, np.full(len(points), 0.35 * style.size.text))
    space.take_line((axes.get_xlim()[0], level), (axes.get_xlim()[1], level))
    for _, own in rows.groupby("configuration", sort=False):
        curve = own.sort_values(X)[[X, "decode_time_s"]].to_numpy(float) / (1e9, scale)
        for one, other in pairwise(curve):
            space.take_line(tuple(one), tuple(other))
    words = []
    for name, rate in reached(rows, target_s).items():
        ink = colour(order.index(name))
        axes.vlines(rate / 1e9, axes.get_ylim()[0], level, color=ink, linewidth=1.0, linestyle=":", zorder=2)
        space.take_line((rate / 1e9, axes.get_ylim()[0]), (rate / 1e9, level))
        words.append(ticks.Label(words=fmt.bandwidth(rate), x=rate / 1e9, y=level, colour=ink))
    ticks.place(space, words, 0.85 * style.size.text)


def _target(words: str, style: Style) -> Line2D:
    """Returns the legend entry of the target."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=style.theme.ink, linewidth=1.0, linestyle="--", label=words)


def _ring(style: Style) -> Line2D:
    """Returns the legend entry of the rings."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="", marker="o", label="bandwidth of the real chip", markerfacecolor="none",
        markeredgecolor=style.theme.ink, markersize=style.size.text,
    )  # fmt: skip
