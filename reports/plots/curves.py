"""Curves: one line per configuration, with intervals as bands and points that do not fit in memory greyed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.language.quantity import SIZES
from llmviewer.reports.plots import intervals
from llmviewer.reports.plots.style import Style, colour, dashes, marker
from llmviewer.reports.plots.ticks import MAX_MARKED_POINTS, across, up
from llmviewer.result.crossover import non_default_techniques
from llmviewer.result.result import Result

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Values: TypeAlias = npt.NDArray[np.float64]
    #: Configuration -> Result, or several Results that each hold some of the points.
    Results: TypeAlias = Mapping[str, "Result | Sequence[Result]"]

#: Column -> axis label.
AXES = {
    **{name: f"{one.heading} ({one.unit.symbol}s)" for name, one in SIZES.items()},
    "bandwidth_bytes_per_s": "Memory bandwidth (GB/s)",
}
SHORT = {name: one.label.lower() for name, one in SIZES.items()}
#: Units of time on an axis, largest first.
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
#: Opacity of a line where the configuration does not fit in memory.
UNFIT_ALPHA = 0.35
MAX_NAME_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One panel: columns x and y, title and unit of y, and the divisor that converts y from SI."""

    x: str
    y: str
    title: str
    unit: str = ""
    scale: float = 1.0


def each(results: Results) -> list[tuple[str, Result]]:
    """Returns (configuration, Result) for every Result."""
    return [(n, one) for n, found in results.items() for one in ([found] if isinstance(found, Result) else found)]


def frame(results: Results) -> pd.DataFrame:
    """Returns Result.to_frame() of all results with a column `configuration`."""
    import pandas as pd

    return pd.concat([one.to_frame().assign(configuration=name) for name, one in each(results)], ignore_index=True)


def along(rows: pd.DataFrame, names: Sequence[str]) -> str:
    """Returns the first of these columns that varies, else the first one."""
    return next((name for name in names if rows[name].nunique() > 1), names[0])


def of_time(rows: pd.DataFrame, x: str, y: str, title: str) -> Curve:
    """Returns a curve of times in the unit of its smallest value."""
    least = float(rows[y].min()) if rows[y].notna().any() else 1.0
    scale, unit = next(((scale, unit) for scale, unit in TIMES if least >= scale), TIMES[-1])
    return Curve(x=x, y=y, title=title, unit=unit, scale=scale)


def draw(rows: pd.DataFrame, curves: Sequence[Curve], style: Style, more: Sequence[Artist] = ()) -> Figure:
    """Draws one panel per curve with a common legend.  more: further legend entries."""
    figure, axes = style.figure(1, len(curves))
    for one, curve in zip(axes, curves, strict=True):
        panel(one, rows, curve, style)
    style.title(figure, common_title(rows, curves[0].x))
    band = any(intervals.banded(rows, curve.y) for curve in curves)
    style.legend_below(figure, [*key(rows, style, band=band), *more], 1)
    style.settle(figure)
    return figure


def common_title(rows: pd.DataFrame, *omitted: str) -> str:
    """Returns the common properties of all points: model, chip, enabled techniques, sizes, efficiency.

    omitted: columns that are not common properties.
    """
    unique = {name for name in rows.columns if name not in omitted and rows[name].nunique(dropna=False) == 1}
    first = rows.iloc[0]
    subject = " on ".join(str(first[name]) for name in ("model", "hardware") if name in unique)
    sizes = [f"{word} {int(first[name]):,}" for name, word in SHORT.items() if name in unique]
    times = [str(first["efficiency"])] if "efficiency" in unique else []
    if "engine" in unique and first["engine"]:
        times.append(str(first["engine"]))
    on = non_default_techniques({str(name): first[name] for name in rows.columns if name in unique})
    return ", ".join(filter(None, [subject, *on, *sizes, " ".join(times)]))


def key(rows: pd.DataFrame, style: Style, *, band: bool = False) -> list[Artist]:
    """Returns legend entries: configurations if there are several, points that do not fit, bands."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(rows["configuration"]))
    entries: list[Artist] = [
        Line2D([], [], color=colour(at), linestyle=dashes(at), marker=marker(at), label=_short(name))
        for at, name in enumerate(names)
        if len(names) > 1
    ]
    if not rows["fits"].all():
        look: dict[str, Any] = {"color": style.theme.faint, "markerfacecolor": style.theme.paper, "marker": "o"}
        entries.append(Line2D([], [], label="does not fit in memory", markeredgecolor=style.theme.ink, **look))
    if band:
        entries.append(intervals.band_key(style))
    return entries


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def panel(axes: Axes, rows: pd.DataFrame, curve: Curve, style: Style, order: str = "") -> None:
    """Draws the lines of one panel with scales and units.  order: column that orders the points, default x."""
    for at, (_, own) in enumerate(rows.groupby("configuration", sort=False)):
        sorted_rows = own.sort_values(order or curve.x)
        _line(axes, sorted_rows, curve, at, style)
        if intervals.banded(rows, curve.y) and not order:
            low, high = intervals.ends(sorted_rows, curve.y)
            bounds = (low / curve.scale, high / curve.scale)
            intervals.band(axes, _of_axis(sorted_rows, curve.x), bounds, colour(at))
    axes.set_xlabel(AXES.get(curve.x, curve.x))
    axes.set_ylabel(axis_label(rows, curve.title, curve.unit))
    if not order:
        across(axes, _of_axis(rows, curve.x), style)
    up(axes, rows[curve.y].to_numpy(float) / curve.scale)


def _line(axes: Axes, rows: pd.DataFrame, curve: Curve, at: int, style: Style) -> None:
    x, y = _of_axis(rows, curve.x), rows[curve.y].to_numpy(float) / curve.scale
    fits = rows["fits"].to_numpy(bool)
    ink: dict[str, Any] = {"color": colour(at), "linewidth": 1.6}
    if not fits.all():
        axes.plot(x, y, linestyle=dashes(at), alpha=UNFIT_ALPHA, **ink)
    shown = marker(at) if len(x) <= MAX_MARKED_POINTS else ""
    axes.plot(x, np.where(fits, y, np.nan), linestyle=dashes(at), marker=shown, markersize=_size(style), **ink)
    if shown and not fits.all():
        axes.plot(
            x[~fits], y[~fits], linestyle="", marker=shown, markersize=_size(style), markeredgecolor=colour(at),
            markerfacecolor=style.theme.paper, alpha=0.8,
        )  # fmt: skip


def axis_label(rows: pd.DataFrame, title: str, unit: str) -> str:
    """Returns `TTFT (ms)`, or `Ideal TTFT (ms)` where all times are bounds of the roofline."""
    if "efficiency" in rows.columns and set(rows["efficiency"]) == {"ideal"}:
        title = f"Ideal {title if title[1:2].isupper() else title[:1].lower() + title[1:]}"
    return f"{title} ({unit})" if unit else title


def _size(style: Style) -> float:
    """Returns the marker size [point]."""
    return style.size.text * 0.6


def _of_axis(rows: pd.DataFrame, name: str) -> Values:
    """Returns values in the unit of the axis."""
    return rows[name].to_numpy(float) / (1e9 if name.endswith("bytes_per_s") else 1.0)
