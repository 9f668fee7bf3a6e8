"""Panels of a figure as Plotly JSON, in the colours of either theme."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.figure import Axis, Line, Panel, Values
from llmviewer.reports.html.charts import FEW, IN_FULL, SERIES, Json, dash, series

#: Opacity of a band.
PALE = 0.22
#: Most points of a line with markers, and most values of an axis with a tick each.
MAX_MARKERS, MAX_TICKS = 60, 12
#: Largest over smallest value above which only the decades of a logarithmic axis have ticks.
WIDE = 1e4


def data(panel: Panel) -> list[Json]:
    """Returns bands, then lines, so that these lie on them, then limits across all points."""
    bands = [trace for line in panel.lines if line.band is not None for trace in _band(line, *line.band)]
    xs = panel.along("x")
    limits = [
        {
            "type": "scatter", "name": escape(limit.name), "meta": "limit", "mode": "lines+text", "hoverinfo": "name",
            "x": [float(xs.min()), float(xs.max())], "y": [limit.at] * 2, "text": [f" {escape(limit.name)}", ""],
            "textposition": "top right",
            "line": {"color": "--ink", "width": 1.2, "dash": dash((limit.rank + 1) * SERIES)}, "showlegend": False,
        }
        for limit in panel.limits
        if not limit.upright
    ]  # fmt: skip
    return [*bands, *(trace for line in panel.lines for trace in _line(line)), *limits]


def layout(panel: Panel) -> Json:
    """Returns both axes, and upright limits."""
    xs = np.unique(panel.along("x"))
    few = len(xs) <= MAX_TICKS and not panel.x.linear and bool((xs == np.round(xs)).all())
    ticks = {"tickvals": xs.tolist(), "ticktext": [fmt.whole(x) for x in xs]} if few else {}
    across = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    upright = [
        {**across, "x0": one.at, "x1": one.at, "line": {"color": "--ink", "width": 1, "dash": DOTTED[one.rank]}}
        for one in panel.limits
        if one.upright
    ]
    ys = np.append(panel.along("y"), [limit.at for limit in panel.limits if not limit.upright])
    return {
        "xaxis": {**axis(panel.x, xs), **ticks},
        "yaxis": axis(panel.y, ys),
        "hovermode": "closest",
        **({"shapes": upright} if upright else {}),
    }


#: Dashes of upright limits by rank.
DOTTED = ("dash", "dot")


def axis(declared: Axis, values: Values) -> Json:
    """Returns an axis with its scale, and numbers in full."""
    kind, known = declared.log(values), values[values > 0.0]
    wide = kind and known.max() > WIDE * known.min()
    scale = ({"dtick": 1, **IN_FULL} if wide else FEW) if kind else {"rangemode": "tozero"}
    numbers = {"exponentformat": "none", "separatethousands": True}
    return {"title": {"text": declared.title}, "type": "log" if kind else "linear", **numbers, **scale}


def _band(line: Line, low: Values, high: Values) -> list[Json]:
    """Returns the area between both ends, none with fewer than two known points."""
    known = np.isfinite(low) & np.isfinite(high)
    if known.sum() < 2:
        return []
    x, low, high = line.x[known], low[known], high[known]
    return [
        {
            "type": "scatter", "mode": "lines", "meta": "band", "fill": "toself", "fillcolor": series(line.number),
            "x": [*x.tolist(), *x[::-1].tolist()], "y": [*low.tolist(), *high[::-1].tolist()], "opacity": PALE,
            "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False,
        }
    ]  # fmt: skip


def _line(line: Line) -> list[Json]:
    """Returns a line of the points that fit and a dotted one, joined to it, of those that do not."""
    fits = np.ones(len(line.x), dtype=bool) if line.fits is None else line.fits
    text = [escape(words).replace("\n", "<br>") for words in line.words]
    unfit, few = ~fits, len(line.x) <= MAX_MARKERS
    joined = unfit | np.append(unfit[1:], False)  # includes the point before, so that the lines join
    traces: list[Any] = [(fits, dash(line.number), "points")] if fits.any() else []
    traces += [(joined, "dot", "unfit points")] if unfit.any() else []
    return [
        {
            "type": "scatter", "mode": "lines+markers" if few else "lines", "meta": meta, "name": escape(line.name),
            "x": line.x.tolist(),
            "y": [float(y) if ok and np.isfinite(y) else None for y, ok in zip(line.y, shown, strict=True)],
            "hovertext": text if meta == "points" else [f"{words}, does not fit" for words in text],
            "hoverinfo": "text",
            "line": {"color": series(line.number), "width": 2, "dash": look},
            "marker": {
                "color": series(line.number), "size": 6, "symbol": "circle" if meta == "points" else "x-thin-open",
            },
        }
        for shown, look, meta in traces
    ]  # fmt: skip
