"""The ledger: predictions over published measurements, by source; none is used for fitting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import parity
from llmviewer.reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Labelled ratios, and the minimum range of the axis.
TICKS = (0.03, 0.06, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
MIN_RATIO, MAX_RATIO = 0.45, 2.2


def frame(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the predicted rows with `ratio` and `inside` (the 80 % interval).

    ratio: predicted over published time, or the inverse for rates, so that above 1 is slower than published.
    table: the rows of `calibrate ledger`.
    """
    import pandas as pd

    sound = [pd.to_numeric(table[name], errors="coerce") > 0 for name in ("published", "predicted")]
    rows = table[sound[0] & sound[1]].reset_index(drop=True)
    known = parity.frame(rows.assign(device=rows["source"]))
    slower = rows["metric"].astype(str).str.contains("ms|latency|ttft|tpot")
    rows["ratio"] = np.where(slower, known["predicted"] / known["measured"], known["measured"] / known["predicted"])
    return rows.assign(inside=(known["low"] <= known["measured"]) & (known["measured"] <= known["high"]))


def picture(table: pd.DataFrame, style: Style) -> Figure:
    """Plots the rows of the ledger."""
    return draw(frame(table), style)


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    figure, (axes,) = style.figure()
    middle = rows.groupby("source")["ratio"].agg(lambda ratios: float(np.median(np.abs(np.log(ratios)))))
    order = list(middle.sort_values(ascending=False).index)
    metrics = list(dict.fromkeys(rows["metric"]))
    figure.set_figheight(max(style.size.height, (len(order) * 1.3 + 12.0) * style.size.text / 72.0))
    axes.axvline(1.0, color=style.theme.ink, linewidth=1.0)
    for (source, metric), own in rows.groupby(["source", "metric"], sort=False):
        _marks(axes, own, (metrics.index(metric), order.index(source)), style)
    axes.set_yticks(np.arange(len(order)), order, fontsize=0.85 * style.size.text)
    _ratios(axes, float(rows["ratio"].min()) / 1.1, float(rows["ratio"].max()) * 1.1)
    inside = float(rows["inside"].mean())
    style.title(
        figure, f"{len(rows)} published measurements, none used for fitting: {inside:.0%} inside the 80 % interval"
    )
    style.legend_below(figure, _key(metrics, style))
    style.settle(figure)
    return figure


def _marks(axes: Axes, rows: pd.DataFrame, at: tuple[int, int], style: Style) -> None:
    """Draws one metric of one source; hollow outside the interval.  at: numbers of metric and source."""
    metric, source = at
    jitter = np.linspace(-0.25, 0.25, len(rows)) if len(rows) > 1 else np.zeros(1)
    for hit in (True, False):
        some = rows["inside"].to_numpy(bool) == hit
        axes.scatter(
            rows["ratio"][some], source + jitter[some], marker=marker(metric), s=1.4 * style.size.text,
            facecolors=colour(metric) if hit else "none", edgecolors=colour(metric), linewidths=0.8, alpha=0.8,
            zorder=3,
        )  # fmt: skip


def _ratios(axes: Axes, low: float, high: float) -> None:
    """Sets the axis of ratios, which includes 1 and a margin on both sides."""
    axes.set_xscale("log")
    axes.set_xlim(min(low, MIN_RATIO), max(high, MAX_RATIO))
    axes.set_xticks([at for at in TICKS if low <= at <= high or MIN_RATIO < at < MAX_RATIO], minor=False)
    axes.xaxis.set_major_formatter(parity.times)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("Predicted time / published time")


def _key(metrics: list[str], style: Style) -> list[Artist]:
    """Returns legend entries of marker shapes and hollow markers."""
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], linestyle="", marker=marker(at), color=colour(at), label=name) for at, name in enumerate(metrics)
    ]
    hollow = Line2D([], [], linestyle="", marker="o", markerfacecolor="none", markeredgecolor=style.theme.ink)
    hollow.set_label("outside the 80 % interval")
    return [*entries, hollow]
