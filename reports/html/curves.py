"""Curves over the sizes of a sweep, thinned to the resolution of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import numpy as np

from llmviewer.language import quantity
from llmviewer.language.quantity import QUANTITIES, Unit
from llmviewer.reports import format as fmt
from llmviewer.reports.html import bands
from llmviewer.reports.html.charts import FEW, GIB, IN_FULL, SERIES, Chart, Json, dash, series, span
from llmviewer.reports.plots import curves as plots
from llmviewer.reports.plots.intervals import MAX_BANDS, ends
from llmviewer.reports.report import Report

#: Size of a request -> label of its axis.
SIZES = {name: plots.AXES[name] for name in quantity.SIZES}
#: Figures with a chart.
DRAWN = ("ttft_s", "tpot_s", "output_tokens_per_s", "total_bytes")
#: Unit -> the one of an axis, and how many of the former it is.
AXES = {Unit.SECOND: ("ms", 1e-3), Unit.BYTE: ("GiB", GIB)}
#: Maximum number of drawn points of one chart, and of curves.
MAX_POINTS = 4000
MAX_CURVES = 12
#: Maximum number of points of a curve with markers.
MAX_MARKERS = 60
#: Maximum number of sizes with a tick each.
MAX_TICKS = 12

Curve = tuple[str, int, "np.ndarray[Any, np.dtype[np.intp]]"]


def axis(report: Report) -> str:
    """Returns the size with the most values."""
    return max(SIZES, key=lambda name: len(set(report.points[name])))


def curves(report: Report) -> list[Curve]:
    """Returns (name, number of the configuration, row indices in the order of the axis) of every curve."""
    along = axis(report)
    others = [name for name in SIZES if name != along and len(set(report.points[name])) > 1]
    columns = {name: np.asarray(report.points[name]) for name in ("configuration", *others)}
    order = np.lexsort([np.asarray(report.points[along])])
    keys = list(zip(*(columns[name][order] for name in columns), strict=True))
    found: dict[tuple[Any, ...], list[int]] = {}
    for row, key in zip(order, keys, strict=True):
        found.setdefault(key, []).append(int(row))
    names = list(report.results)
    return [
        (
            " ".join([*([key[0]] if len(names) > 1 or not others else []), *_sizes(others, key[1:])]),
            names.index(key[0]),
            np.array(rows),
        )
        for key, rows in sorted(found.items(), key=lambda item: (names.index(item[0][0]), *map(int, item[0][1:])))
    ]


def _sizes(others: Sequence[str], values: Sequence[Any]) -> list[str]:
    return [f"{name.split('_')[0]} {fmt.whole(value)}" for name, value in zip(others, values, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Charts with a common legend: (name, colour, dashes) of every curve.  left_out: note on omitted points.

    bands: note on intervals.
    """

    charts: tuple[Chart, ...]
    legend: tuple[tuple[str, str, str], ...]
    left_out: str
    bands: str


def sweep(report: Report, metrics: Sequence[str] = DRAWN) -> Sweep:
    """Returns a chart for each of these metrics that has values."""
    found = curves(report)
    kept = [found[at] for at in np.unique(np.linspace(0, len(found) - 1, MAX_CURVES).astype(int))]
    looks = _looks(kept, len(report.results))
    total, limit = len(report.points["batch_size"]), MAX_POINTS // len(kept)
    notes = []
    if len(kept) < len(found):
        notes.append(f"{len(kept)} of {fmt.whole(len(found))} curves, evenly spaced")
    if any(len(rows) > limit for _, _, rows in kept):
        notes.append(f"at most {fmt.whole(limit)} points per curve, keeping local minima and maxima")
    rest = f"The download and other formats contain all {fmt.whole(total)} points."
    return Sweep(
        charts=tuple(_chart(report, metric, kept, looks) for metric in metrics if exists(report, metric)),
        legend=tuple((name, *look) for (name, _, _), look in zip(kept, looks, strict=True)) if len(kept) > 1 else (),
        left_out=f"Drawn: {'; '.join(notes)}. {rest}" if notes else "",
        bands=bands.note(report, metrics, len(kept)),
    )


def _looks(kept: Sequence[Curve], configurations: int) -> list[tuple[str, str]]:
    """Returns (colour, dashes) per curve; with several configurations the colour is the configuration."""
    if configurations == 1:
        return [(series(at), dash(at)) for at in range(len(kept))]
    own = [sum(one == configuration for _, one, _ in kept[:at]) for at, (_, configuration, _) in enumerate(kept)]
    return [(series(one), dash(one + SERIES * before)) for (_, one, _), before in zip(kept, own, strict=True)]


def exists(report: Report, metric: str) -> bool:
    """Whether any point has the metric; one output token, for example, has no TPOT."""
    return any(value is not None and np.isfinite(value) for value in report.points[metric])


def thinned(values: np.ndarray[Any, np.dtype[np.float64]], limit: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Returns indices of at most `limit` values: both ends, and minimum and maximum of equal parts between them."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    kept = {0, count - 1}
    for part in np.array_split(np.arange(1, count - 1), max((limit - 2) // 2, 1)):
        known = part[np.isfinite(values[part])]
        if len(known):
            kept |= {int(known[np.argmin(values[known])]), int(known[np.argmax(values[known])])}
    return np.array(sorted(kept))


def _chart(report: Report, metric: str, kept: list[Curve], looks: list[tuple[str, str]]) -> Chart:
    declared = QUANTITIES[metric]
    title, show = declared.heading, partial(fmt.figure, metric)
    divisor = AXES.get(declared.unit, ("", 1.0))[1]
    along = axis(report)
    across = np.asarray(report.points[along], dtype=np.float64)
    values = np.array([np.nan if v is None else v for v in report.points[metric]], dtype=np.float64)
    fits = np.asarray(report.points["fits"], dtype=bool)
    low, high = ends(report.points, metric)
    under: list[Json] = []
    data: list[Json] = []
    for (name, _, whole), look in zip(kept, looks, strict=True):
        rows = whole[thinned(values[whole], MAX_POINTS // len(kept))]
        between = bands.words((low[rows], high[rows]), show)
        words = [show(value) + known for value, known in zip(_known(values[rows]), between, strict=True)]
        data += _traces(name, look, (across[rows], values[rows] / divisor, fits[rows]), words)
        if len(kept) <= MAX_BANDS:
            under += bands.trace(look[0], across[rows], (low[rows] / divisor, high[rows] / divisor))
    data = [*under, *data]
    if metric == "total_bytes":
        data += _capacities(report, across)
    xs = [float(value) for value in across]
    ys = [float(y) for trace in data for y in trace["y"] if y is not None]
    return Chart(
        key=f"curve-{metric}",
        title=title,
        alt=f"{title} over {SIZES[along].lower()}: {len(kept)} curves, dotted where memory is exceeded.",
        table="points",
        data=data,
        layout={
            "xaxis": {"title": {"text": SIZES[along]}, **_scale(xs), **_ticks(xs)},
            "yaxis": {"title": {"text": _label(report, metric)}, "rangemode": "tozero", **_scale(ys)},
            "showlegend": False,
            "hovermode": "closest",
        },
        height=380,
    )


def _label(report: Report, metric: str) -> str:
    """Returns the label of the y axis, which says so if all times are bounds of the roofline."""
    declared = QUANTITIES[metric]
    unit = AXES.get(declared.unit, ("", 1.0))[0]
    label = f"{declared.label} ({unit})" if unit else declared.label
    bounds = metric != "total_bytes" and set(report.points.get("efficiency", ())) == {"ideal"}
    return f"Ideal {label if label[1].isupper() else label[:1].lower() + label[1:]}" if bounds else label


def _scale(values: list[float]) -> Json:
    """Returns the axis scale, logarithmic if values span more than a decade, with numbers in full."""
    kind, known = span(values), [value for value in values if value > 0]
    wide = kind == "log" and max(known) / min(known) > 1e4
    return {"type": kind, "exponentformat": "none", "separatethousands": True} | (
        ({"dtick": 1, **IN_FULL} if wide else FEW) if kind == "log" else {}
    )


def _ticks(values: list[float]) -> Json:
    """Returns ticks at the sizes, if there are few."""
    known = sorted(set(values))
    return {"tickvals": known, "ticktext": [fmt.whole(value) for value in known]} if len(known) <= MAX_TICKS else {}


def _known(values: Any) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _traces(name: str, look: tuple[str, str], points: tuple[Any, Any, Any], words: list[str]) -> list[Json]:
    """Returns a line of the points that fit and a dotted one, joined to it, of those that do not."""
    (colour, dashes), (xs, ys, fits) = look, points
    text = [f"{escape(name)}<br>{fmt.whole(x)}: {word}" for x, word in zip(xs, words, strict=True)]
    unfit = ~fits
    joined = unfit | np.append(unfit[1:], False)  # includes the point before, so that the lines join
    traces = []
    for shown, line, meta in ((fits, dashes, "points"), (joined if unfit.any() else unfit, "dot", "unfit points")):
        if not shown.any():
            continue
        few = len(xs) <= MAX_MARKERS
        traces.append(
            {
                "type": "scatter", "mode": "lines+markers" if few else "lines", "meta": meta,
                "x": [float(x) for x in xs], "y": [y if ok else None for y, ok in zip(_known(ys), shown, strict=True)],
                "hovertext": text if meta == "points" else [f"{t}, does not fit" for t in text], "hoverinfo": "text",
                "name": escape(name),
                "line": {"color": colour, "width": 2, "dash": line},
                "marker": {"color": colour, "size": 6, "symbol": "circle" if meta == "points" else "x-thin-open"},
            }
        )  # fmt: skip
    return traces


def _capacities(report: Report, across: Any) -> list[Json]:
    """Returns a line at each memory budget, with the names of its chips."""
    chips: dict[float, dict[str, None]] = {}
    for budget, name in zip(report.points["budget_bytes"], report.points["hardware"], strict=True):
        chips.setdefault(budget, {})[name] = None
    ends = [float(across.min()), float(across.max())]
    return [
        {
            "type": "scatter", "x": ends, "y": [budget / GIB] * 2, "name": name, "meta": "budget",
            "line": {"color": "--ink", "width": 1.2, "dash": dash(at * SERIES + SERIES)}, "hoverinfo": "name",
            "mode": "lines+text", "text": [f" {name}", ""], "textposition": "top right",
        }
        for at, (budget, names) in enumerate(chips.items())
        for name in [f"budget, {escape(', '.join(names))}"]
    ]  # fmt: skip
