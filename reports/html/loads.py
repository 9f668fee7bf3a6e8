"""Latency of a server against the request rate as Plotly JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports.html import drawing
from llmviewer.reports.html.charts import Chart
from llmviewer.reports.plots.latency_rate import SHOWN, panels

if TYPE_CHECKING:
    import pandas as pd


def charts(rows: pd.DataFrame, rate: float) -> list[Chart]:
    """Returns a chart per latency of a row per rate.  rate: the one that was asked [1/s], which a line marks."""
    sustained = f"{float(rows['sustained'].iloc[0]):.3g} requests/s"
    return [
        Chart(
            key=f"load-{name}",
            title=f"{SHOWN[name]} against the request rate",
            alt=f"{SHOWN[name]}, median and p99, up to the highest rate that is sustained, {sustained}.",
            table="load",
            data=drawing.data(panel),
            layout=drawing.layout(panel),
            note=f"Dotted: the highest rate that is sustained, {sustained}; dashed: the rate asked.",
        )
        for name, panel in panels(rows, rate=rate).items()
    ]
