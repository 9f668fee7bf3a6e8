"""The ledger: what we predict over what others published, source by source, none of it fitted on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports.plots import parity
from reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def frame(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of `source`, `metric`, `ratio`, `low`, `high` and `ideal`, all over what was published, as a time would be:
    above 1 is slower than published.  table: the rows of `calibrate ledger`."""
    known = parity.frame(table.assign(device=table["source"]))
    rows = table[table["predicted"].notna()].reset_index(drop=True)
    slower = rows["metric"].str.contains("ms|latency|ttft|tpot")
    rows["ratio"] = np.where(slower, known["predicted"] / known["measured"], known["measured"] / known["predicted"])
    return rows.assign(inside=(known["low"] <= known["measured"]) & (known["measured"] <= known["high"]))


def picture(table: pd.DataFrame, style: Style) -> Figure:
    """The picture of the ledger's rows."""
    return draw(frame(table), style)


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """rows: as of `frame`."""
    from matplotlib.lines import Line2D

    figure, (axes,) = style.figure()
    middle = rows.groupby("source")["ratio"].agg(lambda ratios: float(np.median(np.abs(np.log(ratios)))))
    order = list(middle.sort_values(ascending=False).index)
    metrics = list(dict.fromkeys(rows["metric"]))
    figure.set_figheight(max(style.size.height, (len(order) * 1.3 + 12.0) * style.size.text / 72.0))
    axes.axvline(1.0, color=style.theme.ink, linewidth=1.0)
    for (source, metric), own in rows.groupby(["source", "metric"], sort=False):
        at = metrics.index(metric)
        jitter = np.linspace(-0.25, 0.25, len(own)) if len(own) > 1 else np.zeros(1)
        for hit in (True, False):
            some = own["inside"].to_numpy(bool) == hit
            axes.scatter(
                own["ratio"][some], order.index(source) + jitter[some], marker=marker(at), s=1.4 * style.size.text,
                facecolors=colour(at) if hit else "none", edgecolors=colour(at), linewidths=0.8, alpha=0.8, zorder=3,
            )  # fmt: skip
    axes.set_yticks(
        np.arange(len(order)), order, fontsize=min(style.size.text, 0.62 * style.size.height * 72.0 / len(order))
    )
    axes.set_xscale("log")
    ends = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0]
    low, high = float(rows["ratio"].min()) / 1.1, float(rows["ratio"].max()) * 1.1
    axes.set_xlim(min(low, 0.65), max(high, 1.6))
    axes.set_xticks([at for at in ends if low <= at <= high or 0.65 < at < 1.6], minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_xticks([], minor=True)
    axes.set_xlabel("Predicted time / published time")
    inside = float(rows["inside"].mean())
    style.title(figure, f"{len(rows)} published figures, none fitted on: {inside:.0%} inside the 80 % interval")
    entries = [
        Line2D([], [], linestyle="", marker=marker(at), color=colour(at), label=name) for at, name in enumerate(metrics)
    ]
    hollow = Line2D([], [], linestyle="", marker="o", markerfacecolor="none", markeredgecolor=style.theme.ink)
    hollow.set_label("outside 80 %")
    style.legend_below(figure, [*entries, hollow])
    style.settle(figure)
    return figure
