"""Curves: a line a configuration along one axis, with the band of its interval and the points that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
    #: Configurations by name; several results where points were answered one by one.
    Results: TypeAlias = Mapping[str, "Result | Sequence[Result]"]

#: Columns of sizes -> what axes and titles call them.
AXES = {
    "batch_size": "Batch size (sequences)",
    "input_len": "Prompt (tokens)",
    "output_len": "Output (tokens)",
    "bandwidth_bytes_per_s": "Memory bandwidth (GB/s)",
}
SHORT = {"batch_size": "batch", "input_len": "input", "output_len": "output"}
#: Units of times on an axis, the largest first.
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
#: How much of a line is left where it does not fit in memory.
GREYED = 0.35
LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one axes shows: columns of the frame, the name of y without its unit, and what divides it."""

    x: str
    y: str
    title: str
    unit: str = ""
    scale: float = 1.0


def each(results: Results) -> list[tuple[str, Result]]:
    """Every result with the name of its configuration."""
    return [(n, one) for n, found in results.items() for one in ([found] if isinstance(found, Result) else found)]


def frame(results: Results) -> pd.DataFrame:
    """A row a point, as of Result.to_frame(), with its configuration."""
    import pandas as pd

    return pd.concat([one.to_frame().assign(configuration=name) for name, one in each(results)], ignore_index=True)


def along(rows: pd.DataFrame, names: Sequence[str]) -> str:
    """The first of these columns that varies, else the first."""
    return next((name for name in names if rows[name].nunique() > 1), names[0])


def of_time(rows: pd.DataFrame, x: str, y: str, title: str) -> Curve:
    """A curve of seconds, in the unit that suits its smallest value."""
    least = float(rows[y].min()) if rows[y].notna().any() else 1.0
    scale, unit = next(((scale, unit) for scale, unit in TIMES if least >= scale), TIMES[-1])
    return Curve(x=x, y=y, title=title, unit=unit, scale=scale)


def draw(rows: pd.DataFrame, curves: Sequence[Curve], style: Style, more: Sequence[Artist] = ()) -> Figure:
    """A panel for every curve, side by side, one key for all.  more: entries of the key beside what lines mean."""
    figure, axes = style.figure(1, len(curves))
    for one, curve in zip(axes, curves, strict=True):
        panel(one, rows, curve, style)
    style.title(figure, common_title(rows, curves[0].x))
    style.legend_below(figure, [*key(rows, style, band=any(bands(rows, curve.y) for curve in curves)), *more], 1)
    style.settle(figure)
    return figure


def common_title(rows: pd.DataFrame, *but: str) -> str:
    """What all points have in common: model, chip, techniques that are on, sizes, how times were made."""
    unique = {name for name in rows.columns if name not in but and rows[name].nunique(dropna=False) == 1}
    first = rows.iloc[0]
    what = " on ".join(str(first[name]) for name in ("model", "hardware") if name in unique)
    sizes = [f"{word} {int(first[name]):,}" for name, word in SHORT.items() if name in unique]
    times = [str(first["efficiency"])] if "efficiency" in unique else []
    if "engine" in unique and first["engine"] and first["engine"] != "kernels":
        times.append(str(first["engine"]))
    on = non_default_techniques({str(name): first[name] for name in rows.columns if name in unique})
    return ", ".join(filter(None, [what, *on, *sizes, " ".join(times)]))


def key(rows: pd.DataFrame, style: Style, *, band: bool = False) -> list[Artist]:
    """Entries: configurations where there are several, what does not fit, bands."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

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
        entries.append(Patch(color=style.theme.ink, alpha=0.2, label="80 % interval"))
    return entries


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def panel(axes: Axes, rows: pd.DataFrame, curve: Curve, style: Style, order: str = "") -> None:
    """The lines of one panel, its scales and units.  order: the column whose order lines follow, unless x."""
    for at, (_, own) in enumerate(rows.groupby("configuration", sort=False)):
        _line(axes, own.sort_values(order or curve.x), curve, at, style)
    axes.set_xlabel(AXES.get(curve.x, curve.x))
    axes.set_ylabel(f"{curve.title} ({curve.unit})" if curve.unit else curve.title)
    if not order:
        across(axes, _of_axis(rows, curve.x), style)
    up(axes, rows[curve.y].to_numpy(float) / curve.scale)


def _line(axes: Axes, rows: pd.DataFrame, curve: Curve, at: int, style: Style) -> None:
    x, y = _of_axis(rows, curve.x), rows[curve.y].to_numpy(float) / curve.scale
    fits = rows["fits"].to_numpy(bool)
    ink: dict[str, Any] = {"color": colour(at), "linewidth": 1.6}
    if not fits.all():
        axes.plot(x, y, linestyle=dashes(at), alpha=GREYED, **ink)
    shown = marker(at) if len(x) <= MAX_MARKED_POINTS else ""
    axes.plot(x, np.where(fits, y, np.nan), linestyle=dashes(at), marker=shown, markersize=_size(style), **ink)
    if shown and not fits.all():
        axes.plot(
            x[~fits], y[~fits], linestyle="", marker=shown, markersize=_size(style), markeredgecolor=colour(at),
            markerfacecolor=style.theme.paper, alpha=0.8,
        )  # fmt: skip
    band = bands(rows, curve.y)
    if band:
        low, high = (rows[name].to_numpy(float) / curve.scale for name in band)
        axes.fill_between(x, low, high, color=colour(at), alpha=0.2, linewidth=0)


def bands(rows: pd.DataFrame, name: str) -> tuple[str, str] | None:
    """Columns of the 80 % interval of a time, where it is calibrated."""
    low, high = (f"{name.removesuffix('_s')}_{end}80_s" for end in ("low", "high"))
    return (low, high) if low in rows.columns and rows[low].notna().any() else None


def _size(style: Style) -> float:
    """Of a marker [point]."""
    return style.size.text * 0.6


def _of_axis(rows: pd.DataFrame, name: str) -> Values:
    """Values in the unit of the axis."""
    return rows[name].to_numpy(float) / (1e9 if name.endswith("bytes_per_s") else 1.0)
