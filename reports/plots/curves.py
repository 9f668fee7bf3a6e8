"""Curves: one line per configuration, with intervals as bands, and what their points have in common as a title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import SIZES
from llmviewer.reports.figure import Axis, Limit, Line, Panel
from llmviewer.reports.plots import drawing, intervals
from llmviewer.reports.plots.style import Style
from llmviewer.result.crossover import non_default_techniques
from llmviewer.result.result import Result

if TYPE_CHECKING:
    from typing import TypeAlias

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

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


@frozen
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
    """Returns the points of all results with a column `configuration`."""
    import pandas as pd

    return pd.concat(
        [pd.DataFrame(one.columns()).assign(configuration=name) for name, one in each(results)], ignore_index=True
    )


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
    return drawing.figure([panel(rows, one) for one in curves], common_title(rows, curves[0].x), style, more)


def panel(rows: pd.DataFrame, curve: Curve, order: str = "", *limits: Limit) -> Panel:
    """Returns a line per configuration.  order: column that orders the points and takes the bands away, default x."""
    lines = []
    for number, (name, unsorted) in enumerate(rows.groupby("configuration", sort=False)):
        own = unsorted.sort_values(order or curve.x)
        low, high = intervals.ends(own, curve.y)
        lines.append(
            Line(
                name=str(name),
                number=number,
                x=own[curve.x].to_numpy(float) / (1e9 if curve.x.endswith("bytes_per_s") else 1.0),
                y=own[curve.y].to_numpy(float) / curve.scale,
                fits=own["fits"].to_numpy(bool),
                band=(low / curve.scale, high / curve.scale) if intervals.banded(rows, curve.y) and not order else None,
            )
        )
    title = axis_label(rows, curve.title, curve.unit)
    return Panel(x=Axis(title=AXES.get(curve.x, curve.x)), y=Axis(title=title), lines=tuple(lines), limits=limits)


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


def title_of(*results: Result) -> str:
    """Returns what the first points of these results have in common."""
    return common_title(frame({str(at): one for at, one in enumerate(results)}).groupby("configuration").head(1))


def axis_label(rows: pd.DataFrame | Mapping[str, Sequence[Any]], title: str, unit: str) -> str:
    """Returns `TTFT (ms)`, or `Ideal TTFT (ms)` where all times are bounds of the roofline."""
    if "efficiency" in rows and set(rows["efficiency"]) == {"ideal"}:
        title = f"Ideal {title if title[1:2].isupper() else title[:1].lower() + title[1:]}"
    return f"{title} ({unit})" if unit else title
