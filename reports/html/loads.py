"""Latency of a server against the request rate as Plotly JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.html.charts import FEW, Chart, series
from llmviewer.reports.plots.latency_rate import SHOWN, STATISTICS

if TYPE_CHECKING:
    import pandas as pd


def chart(rows: pd.DataFrame, rate: float) -> Chart:
    """Returns the chart of a row per rate.  rate: the one that was asked [1/s], which a line marks."""
    sustained = float(rows["sustained"].iloc[0])
    across = rows["request_rate"].tolist()
    data = []
    for at, (name, words) in enumerate(SHOWN.items()):
        for which, dash in zip(STATISTICS, ("solid", "dash"), strict=True):
            seconds = rows[f"{name} {which}"].tolist()
            told = [f"{words} {which}: {fmt.duration(one)}" for one in seconds]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": f"{words}, {which}",
                    "x": across,
                    "y": [one * 1e3 for one in seconds],
                    "hovertext": told,
                    "hoverinfo": "text+x",
                    "line": {"color": series(at), "dash": dash, "width": 2},
                }
            )
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": rate, "x1": rate, "y0": 0, "y1": 1}
    return Chart(
        key="load",
        title="Latency against the request rate",
        alt=f"TTFT and TPOT, median and p99, up to the highest rate that is sustained, {sustained:.3g} requests/s.",
        table="load",
        data=data,
        layout={
            "xaxis": {"title": {"text": "Requests/s"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "Latency (ms)"}, "type": "log", **FEW},
            "shapes": [{**line, "line": {"color": "--ink", "width": 1, "dash": "dot"}}],
        },
        note=f"Highest rate that is sustained: {sustained:.3g} requests/s; the dotted line is the rate asked.",
    )
