"""Sweep: times, throughput and memory over batch sizes or lengths."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.reports.html import curves
from llmviewer.reports.web import graphs
from llmviewer.reports.web.points import points, report
from llmviewer.reports.web.view import View

#: Batch sizes of the curves.
BATCHES = tuple(2**power for power in range(10))


def content(view: View) -> list[Any]:
    """Curves over batch sizes, for the prompt asked, half of it and twice it."""
    sizes = view.sizes
    inputs = sorted({max(sizes["input_len"] // 2, 1), sizes["input_len"], sizes["input_len"] * 2})
    batches = sorted({*BATCHES, sizes["batch_size"]})
    found = curves.sweep(report(view, points(view, batches, inputs, [sizes["output_len"]])))
    notes = [html.P(text, className="note") for text in (found.left_out, found.bands) if text]
    legend = html.Ul([html.Li(name) for name, _, _ in found.legend], className="legend")
    drawn = html.Div([graphs.graph(chart, view.theme) for chart in found.charts], className="grid")
    download = html.A("Download as CSV", href=f"download/sweep.csv?{view.state.query()}", className="button")
    return [html.Div([legend, download], className="above"), drawn, *notes]
