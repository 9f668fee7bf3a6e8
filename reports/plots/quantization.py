"""Time and memory of configurations that differ in quantization or any other option, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.plots import bars, curves, memory, ticks
from llmviewer.reports.plots.curves import frame
from llmviewer.reports.plots.style import Style, colour

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Palette number of times, not used by memory parts.
INK = 5
PANELS = (("prefill_time_s", "Prefill time"), ("decode_time_s", "Decode step time"))


def picture(results: curves.Results, style: Style) -> Figure:
    """Plots configurations with one point each."""
    return draw(frame(results), style)


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    figure, axes = style.figure(1, len(PANELS) + 1)
    names = list(rows["configuration"])
    for one, (y, title) in zip(axes, PANELS, strict=False):
        _times(one, rows, curves.of_time(rows, "", y, title), style)
        bars.names(one, names, style)
    parts = memory.parts(rows)
    bars.stack(axes[-1], parts, style)
    bars.names(axes[-1], names, style)
    axes[-1].set_ylabel("Device memory (GiB)")
    capacities = rows["capacity_bytes"].to_numpy(float) / memory.GIB
    total = float(rows["total_bytes"].max()) / memory.GIB
    if capacities.min() < 3.0 * total:
        places = np.arange(len(rows))
        axes[-1].hlines(capacities, places - 0.45, places + 0.45, color=style.theme.ink, linewidth=1.4)
    style.title(figure, curves.common_title(rows))
    style.legend_below(figure, memory.key(parts, style, fits=bool(rows["fits"].all()), budget=False))
    style.settle(figure)
    return figure


def _times(axes: Axes, rows: pd.DataFrame, curve: curves.Curve, style: Style) -> None:
    """Draws a bar with interval per configuration, hollow if it does not fit in memory."""
    upright = ticks.room_for(["0.000"], axes, style) < len(rows)
    for at, (_, row) in enumerate(rows.iterrows()):
        value, ink = float(row[curve.y]) / curve.scale, colour(INK)
        axes.bar(at, value, 0.75, color=ink if row["fits"] else style.theme.paper, edgecolor=ink, linewidth=1.2)
        axes.annotate(
            fmt.digits(value), (at, value), xytext=(0, 2), textcoords="offset points", ha="center", va="bottom",
            rotation=90 if upright else 0, fontsize=style.size.text * 0.75, color=style.theme.ink,
        )  # fmt: skip
    band = curves.bands(rows, curve.y)
    if band:
        low, high = (rows[name].to_numpy(float) / curve.scale for name in band)
        axes.vlines(np.arange(len(rows)), low, high, color=style.theme.ink, linewidth=1.2)
    axes.set_ylabel(f"{curve.title} ({curve.unit})")
    axes.margins(y=0.2 if upright else 0.1)
    axes.grid(visible=False, axis="x")
