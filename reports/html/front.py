"""The front of a sizing as Plotly JSON: cost against TPOT of the configurations that no other one beats in both."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.figure import Axis, Line, Panel
from llmviewer.reports.html import drawing
from llmviewer.reports.html.charts import Chart, Json

#: Largest multiple of the least cost that is drawn; dearer points are far beyond need.
MOST_TIMES = 20.0
#: What a sizing sets against tokens per second and user -> key of its figure, title of the axis, unit.
COSTS = {"usd": ("usd_per_hour", "Dollars per hour", "$/h"), "gpus": ("devices", "Devices", "devices")}


def chart(answer: dict[str, Any]) -> Chart:
    """Returns the chart of a sizing object: the two figures of its front, and the best configuration as a star.

    TPOT is the mean, whose inverse is the front's tokens per second and user.
    """
    key, title, unit = COSTS[answer["request"]["front"]]
    points, best = answer["frontier"], answer["best"]
    least = min(one[key] for one in points)
    kept = [one for one in points if one[key] <= MOST_TIMES * least]
    names = list(dict.fromkeys(one["hardware"] for one in kept))
    lines = [_line(name, at, [one for one in kept if one["hardware"] == name], key, unit)
             for at, name in enumerate(names)]  # fmt: skip
    panel = Panel(x=Axis(title=title, logarithmic=True), y=Axis(title="Mean TPOT (ms)", linear=True), lines=(*lines,))
    data = drawing.data(panel)
    note = "Star: the best configuration, simulated; the others are in the steady state."
    more = f" Drawn: configurations of up to {MOST_TIMES:g} times the least cost." if len(kept) < len(points) else ""
    return Chart(
        key="front",
        title="Front of cost and latency",
        alt=f"{len(kept)} configurations none of which is both cheaper and faster: {title.lower()} against mean TPOT.",
        table="size",
        data=[*data, _best(best, key, unit)] if best[key] is not None else data,
        layout=drawing.layout(panel),
        note=note + more,
    )


def _milliseconds(one: dict[str, Any]) -> float:
    """Returns the mean TPOT of a configuration [ms]."""
    return 1e3 / float(one["output_tokens_per_s_per_user"])


def _words(one: dict[str, Any], key: str, unit: str) -> str:
    cost, latency = fmt.digits(one[key]), fmt.duration(_milliseconds(one) * 1e-3)
    return f"{one['devices']} × {one['hardware']}: {cost} {unit}, {latency}"


def _line(name: str, at: int, points: list[dict[str, Any]], key: str, unit: str) -> Line:
    return Line(
        name=name,
        number=at,
        x=np.array([float(one[key]) for one in points]),
        y=np.array([_milliseconds(one) for one in points]),
        words=tuple(_words(one, key, unit) for one in points),
    )


def _best(one: dict[str, Any], key: str, unit: str) -> Json:
    """Returns the mark of the best configuration."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "best",
        "x": [float(one[key])],
        "y": [_milliseconds(one)],
        "hovertext": [escape(f"best: {_words(one, key, unit)}")],
        "hoverinfo": "text",
        "marker": {"color": "--ink", "size": 14, "symbol": "star"},
    }
