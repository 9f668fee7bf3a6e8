"""Weights, KV cache, activations and framework against capacity, over batch size or length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.language.quantity import MEMORY
from llmviewer.reports.plots import bars, curves, ticks
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = {name: one.title for name, one in MEMORY.items() if name != "total_bytes"}
GIB = 2.0**30
#: The y axis ends at this multiple of the capacity.
MAX_CAPACITIES = 2.2
#: Maximum number of bars with gaps between them.
MAX_SEPARATE_BARS = 24


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations over batch size or length."""
    return draw(frame(results), style)


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    x = curves.along(rows, ("batch_size", "input_len", "output_len"))
    groups = list(rows.groupby("configuration", sort=False))
    columns = int(np.ceil(np.sqrt(len(groups))))
    figure, axes = style.figure(-(-len(groups) // columns), columns)
    for one, (name, own) in zip(axes, groups, strict=False):
        _panel(one, own.sort_values(x), x, style)
        one.set_title(str(name) if len(groups) > 1 else "", fontsize=style.size.text * 0.9, color=style.theme.ink)
    for at, one in enumerate(axes):
        one.set_visible(at < len(groups))
        one.set_xlabel(one.get_xlabel() if at + columns >= len(groups) else "")
        one.set_ylabel(one.get_ylabel() if at % columns == 0 else "")
    style.title(figure, curves.common_title(rows, x))
    style.legend_below(figure, key(parts(rows), style, fits=bool(rows["fits"].all())))
    style.settle(figure)
    return figure


def parts(rows: pd.DataFrame) -> list[bars.BarPart]:
    """Returns the parts of the memory [GiB]."""
    sizes = ((label, rows[name].to_numpy(float) / GIB) for name, label in PARTS.items())
    return [bars.BarPart(name=label, sizes=size, number=at) for at, (label, size) in enumerate(sizes)]


def _panel(axes: Axes, rows: pd.DataFrame, x: str, style: Style) -> None:
    capacity, budget = (float(rows[name].iloc[0]) / GIB for name in ("capacity_bytes", "budget_bytes"))
    bars.stack(axes, parts(rows), style, 0.8 if len(rows) <= MAX_SEPARATE_BARS else 1.0)
    axes.axhline(capacity, color=style.theme.ink, linewidth=1.4)
    axes.axhline(budget, color=style.theme.ink, linewidth=1.0, linestyle="--")
    highest = float(rows["total_bytes"].max()) / GIB
    axes.set_ylim(0.0, 1.05 * max(min(highest, MAX_CAPACITIES * capacity), capacity))
    words = [f"{value:,}" for value in rows[x].to_numpy(int)]
    places = ticks.spaced(np.arange(len(rows), dtype=float), words, axes, style)
    axes.set_xticks(places, [words[int(place)] for place in places])
    axes.set_xlabel(curves.AXES[x])
    axes.set_ylabel("Device memory (GiB)")
    axes.yaxis.set_major_formatter(ticks.plain)
    for place in np.flatnonzero(~rows["fits"].to_numpy(bool)):
        axes.axvspan(place - 0.5, place + 0.5, color=style.theme.faint, alpha=0.35, linewidth=0, zorder=0)


def key(stacked: list[bars.BarPart], style: Style, *, fits: bool, budget: bool = True) -> list[Artist]:
    """Returns legend entries: parts, capacity, budget, and configurations that do not fit."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ink = style.theme.ink
    entries: list[Artist] = [*bars.handles(stacked, style), Line2D([], [], color=ink, linewidth=1.4, label="capacity")]
    if budget:
        entries.append(Line2D([], [], color=ink, linewidth=1.0, linestyle="--", label="budget"))
    if not fits:
        look = {"color": style.theme.faint, "alpha": 0.35} if budget else {"facecolor": "none", "edgecolor": ink}
        entries.append(Patch(label="does not fit in memory", **look))
    return entries
