"""Predicted against measured values, their ratio, and interval coverage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import ticks
from llmviewer.reports.plots.style import Style, colour, marker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Columns of a validated table: measured, predicted, ends of the 80 % interval, group.
KERNELS = ("latency_us", "predicted_us", "low80_us", "high80_us", "kernel")
REQUESTS = ("value", "predicted", "low80", "high80", "metric")
LEDGER = ("published", "predicted", "low80", "high80", "metric")
#: Groups with a colour of their own.
MAX_GROUPS = 7
#: Bins of measured values in which intervals are summarized.
BINS = 15


def is_table(columns: Iterable[str]) -> bool:
    """Whether these are the columns of a table with predictions."""
    return _known(columns) is not None


def _known(columns: Iterable[str]) -> tuple[str, ...] | None:
    there = set(columns)
    return next((names for names in (KERNELS, REQUESTS, LEDGER) if {*names[:4]} <= there), None)


def frame(table: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of `measured`, `predicted`, `low`, `high`, `unit`, `group`, without rows that were not predicted.

    table: output of `calibrate validate -o`, or rows of `calibrate ledger`.
    """
    import pandas as pd

    names = _known(table.columns)
    if names is None:
        raise ValueError("columns of predictions are missing")
    columns = dict(zip(("measured", "predicted", "low", "high"), names, strict=False))
    rows = pd.DataFrame({name: pd.to_numeric(table[column], errors="coerce") for name, column in columns.items()})
    rows["unit"] = "µs" if names == KERNELS else "unit of the metric"
    rows["group"] = _groups(table, names[4])
    return rows[(rows["measured"] > 0) & (rows["predicted"] > 0)].reset_index(drop=True)


def _groups(table: pd.DataFrame, name: str) -> pd.Series[str]:
    """Returns the group of each row: its kernel if there are few, else its chip if that is among the most common."""
    for column in (name, "op", "device", "hardware"):
        if column in table.columns and 1 < table[column].nunique() <= MAX_GROUPS:
            return table[column].astype(str)
    column = next((name for name in ("device", "hardware", name) if name in table.columns), table.columns[0])
    names = table[column].astype(str)
    return names.where(names.isin(list(names.value_counts().index[: MAX_GROUPS - 1])), "others")


def picture(table: pd.DataFrame, style: Style) -> Figure:
    """Plots a validated table."""
    return draw(frame(table), style)


def times(value: float, _: object) -> str:
    """Formats the tick of a ratio: `2×`."""
    return f"{value:g}×"


def draw(rows: pd.DataFrame, style: Style) -> Figure:
    """Draws rows of `frame`."""
    from matplotlib.ticker import NullFormatter

    figure, (left, right) = style.figure(1, 2)
    ratio = rows["predicted"] / rows["measured"]
    lowest, highest = (float(f(rows[["measured", "predicted"]].to_numpy())) for f in (np.min, np.max))
    left.plot([lowest, highest], [lowest, highest], color=style.theme.ink, linewidth=1.0, zorder=3)
    right.axhline(1.0, color=style.theme.ink, linewidth=1.0, zorder=3)
    for at, (_, own) in enumerate(rows.groupby("group", sort=False)):
        for axes, y in ((left, own["predicted"]), (right, ratio[own.index])):
            axes.plot(
                own["measured"], y, linestyle="", marker=marker(at), color=colour(at), alpha=0.5, markeredgewidth=0,
                markersize=style.size.text * (0.45 if len(rows) < 500 else 0.25), rasterized=len(rows) > 2000,
            )  # fmt: skip
    _interval(right, rows, style)
    unit = rows["unit"].iloc[0]
    left.set(xscale="log", yscale="log", xlabel=f"Measured ({unit})", ylabel=f"Predicted ({unit})")
    right.set(xscale="log", yscale="log", xlabel=f"Measured ({unit})", ylabel="Predicted / measured")
    low, high = np.quantile(ratio, [0.002, 0.998])
    right.set_ylim(min(0.45, float(low)), max(2.2, float(high)))
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        ticks.round_ticks(axis, rows["measured"].to_numpy(float), (1.0,))
    right.yaxis.set_major_formatter(times)
    right.yaxis.set_minor_formatter(NullFormatter())
    shown = right.get_ylim()
    right.set_yticks([at for at in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0) if shown[0] <= at <= shown[1]])
    style.title(figure, title(rows))
    style.legend_below(figure, _key(rows, style))
    style.settle(figure)
    return figure


def title(rows: pd.DataFrame) -> str:
    """Returns number of rows, mean error and coverage of the 80 % interval."""
    error = float((rows["predicted"] / rows["measured"] - 1.0).abs().mean())
    inside = float(((rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])).mean())
    return f"{len(rows):,} rows: mean error {error:.1%}, {inside:.0%} inside the 80 % interval"


def _interval(axes: Axes, rows: pd.DataFrame, style: Style) -> None:
    """Draws the predicted / measured ratios that the 80 % interval spans: medians in bins of measured values."""
    import pandas as pd

    bins = np.geomspace(rows["measured"].min() * 0.999, rows["measured"].max() * 1.001, BINS + 1)
    place = np.searchsorted(bins, rows["measured"].to_numpy(float))
    ratios = pd.DataFrame({end: rows["predicted"] / rows[end] for end in ("high", "low")})
    middle = ratios.groupby(place).median().dropna()
    at = middle.index.to_numpy(int)
    low, high = (middle[end].to_numpy(float) for end in ("high", "low"))
    axes.fill_between(np.sqrt(bins[at - 1] * bins[at]), low, high, color=style.theme.ink, alpha=0.12, linewidth=0)


def _key(rows: pd.DataFrame, style: Style) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(rows["group"]))
    dots = [
        Line2D([], [], linestyle="", marker=marker(at), color=colour(at), label=name) for at, name in enumerate(names)
    ]
    return [*dots, Patch(color=style.theme.ink, alpha=0.12, label="80 % interval (median)")]
