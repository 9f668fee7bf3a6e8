"""The front of a sizing as Plotly JSON: cost against latency of the configurations that no other one beats."""

from __future__ import annotations

from html import escape
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import IN_FULL, Chart, Json, series

#: Largest multiple of the least cost that is drawn; dearer points are far beyond need.
MOST_TIMES = 20.0


def chart(answer: dict[str, Any]) -> Chart:
    """Returns the chart of a sizing object: dollars per hour, or devices where a price is unknown, against TPOT."""
    points = answer["frontier"]
    priced = all(one["usd_per_hour"] for one in points)
    costs = [float(one["usd_per_hour"] if priced else one["devices"]) for one in points]
    kept = [at for at, cost in enumerate(costs) if cost <= MOST_TIMES * min(costs)]
    names = list(dict.fromkeys(points[at]["hardware"] for at in kept))
    title, unit = ("Dollars per hour", "$/h") if priced else ("Devices", "devices")
    data = [_trace(name, at, [(costs[i], points[i]) for i in kept if points[i]["hardware"] == name], unit)
            for at, name in enumerate(names)]  # fmt: skip
    return Chart(
        key="front",
        title="Front of cost and latency",
        alt=f"{len(kept)} configurations none of which is both cheaper and faster: {title.lower()} against TPOT.",
        table="size",
        data=data,
        layout={
            "xaxis": {"title": {"text": title}, "type": "log", **IN_FULL},
            "yaxis": {"title": {"text": "TPOT (ms)"}, "rangemode": "tozero"},
            "hovermode": "closest",
        },
        note=f"Drawn: configurations of up to {MOST_TIMES:g} times the least cost." if len(kept) < len(points) else "",
    )


def _trace(name: str, at: int, points: list[tuple[float, dict[str, Any]]], unit: str) -> Json:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(name),
        "x": [cost for cost, _ in points],
        "y": [one["tpot_s"] * 1e3 for _, one in points],
        "hovertext": [
            f"{escape(name)}: {fmt.digits(cost)} {unit}, {fmt.duration(one['tpot_s'])}" for cost, one in points
        ],
        "hoverinfo": "text",
        "line": {"color": series(at), "width": 1},
        "marker": {"color": series(at), "size": 8},
    }
