"""Curves over the sizes of a sweep, thinned to the resolution of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.language import quantity
from llmviewer.language.quantity import QUANTITIES, Unit
from llmviewer.reports import format as fmt
from llmviewer.reports.figure import Axis, Limit, Line, Panel
from llmviewer.reports.html import drawing
from llmviewer.reports.html.charts import GIB, SERIES, Chart, dash, series
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


@frozen
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
    numbers = _numbers(kept, len(report.results))
    total, limit = len(report.points["batch_size"]), MAX_POINTS // len(kept)
    notes = []
    if len(kept) < len(found):
        notes.append(f"{len(kept)} of {fmt.whole(len(found))} curves, evenly spaced")
    if any(len(rows) > limit for _, _, rows in kept):
        notes.append(f"at most {fmt.whole(limit)} points per curve, keeping local minima and maxima")
    rest = f"The download and other formats contain all {fmt.whole(total)} points."
    return Sweep(
        charts=tuple(_chart(report, metric, kept, numbers) for metric in metrics if exists(report, metric)),
        legend=tuple((name, series(at), dash(at)) for (name, _, _), at in zip(kept, numbers, strict=True))
        if len(kept) > 1
        else (),
        left_out=f"Drawn: {'; '.join(notes)}. {rest}" if notes else "",
        bands=_note(report, metrics, len(kept)),
    )


def _numbers(kept: Sequence[Curve], configurations: int) -> list[int]:
    """Returns a number per curve, for its colour and dashes; of several configurations each has one colour."""
    if configurations == 1:
        return list(range(len(kept)))
    return [one + SERIES * sum(one == other for _, other, _ in kept[:at]) for at, (_, one, _) in enumerate(kept)]


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


def _chart(report: Report, metric: str, kept: list[Curve], numbers: list[int]) -> Chart:
    declared = QUANTITIES[metric]
    show, divisor = partial(fmt.figure, metric), AXES.get(declared.unit, ("", 1.0))[1]
    along = axis(report)
    across = np.asarray(report.points[along], dtype=np.float64)
    values = np.array([np.nan if v is None else v for v in report.points[metric]], dtype=np.float64)
    fits = np.asarray(report.points["fits"], dtype=bool)
    low, high = ends(report.points, metric)
    lines = []
    for (name, _, whole), number in zip(kept, numbers, strict=True):
        at = whole[thinned(values[whole], MAX_POINTS // len(kept))]
        words = tuple(
            f"{name}\n{fmt.whole(x)}: {show(value if np.isfinite(value) else None)}"
            + (f" (80 %: {show(least)} to {show(most)})" if np.isfinite(least) and np.isfinite(most) else "")
            for x, value, least, most in zip(across[at], values[at], low[at], high[at], strict=True)
        )
        band = (low[at] / divisor, high[at] / divisor) if len(kept) <= MAX_BANDS else None
        lines.append(
            Line(name=name, number=number, x=across[at], y=values[at] / divisor, fits=fits[at], band=band, words=words)
        )
    limits = _budgets(report) if metric == "total_bytes" else ()
    axes = {"x": Axis(title=SIZES[along]), "y": Axis(title=_label(report, metric))}
    panel = Panel(**axes, lines=tuple(lines), limits=limits)
    title = declared.heading
    return Chart(
        key=f"curve-{metric}",
        title=title,
        alt=f"{title} over {SIZES[along].lower()}: {len(kept)} curves, dotted where memory is exceeded.",
        table="points",
        data=drawing.data(panel),
        layout={**drawing.layout(panel), "showlegend": False},
        height=380,
    )


def _label(report: Report, metric: str) -> str:
    """Returns the label of the y axis, which says so if all times are bounds of the roofline."""
    declared = QUANTITIES[metric]
    unit = AXES.get(declared.unit, ("", 1.0))[0]
    return plots.axis_label({} if metric == "total_bytes" else report.points, declared.label, unit)


def _budgets(report: Report) -> tuple[Limit, ...]:
    """Returns a limit at each memory budget, with the names of its chips."""
    chips: dict[float, dict[str, None]] = {}
    for budget, name in zip(report.points["budget_bytes"], report.points["hardware"], strict=True):
        chips.setdefault(budget, {})[name] = None
    return tuple(
        Limit(name=f"budget, {', '.join(names)}", at=budget / GIB, rank=rank)
        for rank, (budget, names) in enumerate(chips.items())
    )


def _note(report: Report, metrics: Sequence[str], curves: int) -> str:
    """Returns a sentence on the bands; empty if no metric has intervals."""
    if not any(np.isfinite(ends(report.points, metric)[0]).any() for metric in metrics):
        return ""
    if curves > MAX_BANDS:
        return f"Points state their 80 % intervals; bands of more than {MAX_BANDS} curves would hide each other."
    return "Bands: 80 % intervals of calibrated times; that of the throughput is the interval of E2E, inverted."
