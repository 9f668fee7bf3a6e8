"""Load: requests that arrive at a rate, simulated on a server, and latency against the rate."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.core.errors import UserError, quoted
from llmviewer.reports import simulation_page
from llmviewer.reports.html import loads
from llmviewer.reports.plots import latency_rate
from llmviewer.reports.web import graphs, parts
from llmviewer.reports.web.questions import Field, form
from llmviewer.reports.web.view import View
from llmviewer.simulation.call import simulate

FIELDS = (
    Field(name="request_rate", label="Requests per second", start="8"),
    Field(name="ttft", label="Time to first token at most", start="p99:2s"),
    Field(name="tpot", label="Time per output token at most", start="p99:50ms"),
)
#: Requests of a simulation here; `llmviewer simulate` takes any number.
REQUESTS = 400


def content(view: View) -> list[Any]:
    """The form, which a button answers."""
    note = f"A simulation of {REQUESTS} requests that arrive at random, on the engine's scheduler; it takes seconds."
    return [form(view, FIELDS, "load", "Simulate", note), html.Div(id="load-answer")]


def answered(view: View, asked: dict[str, str]) -> list[Any]:
    """The page of a simulation, and its latencies at ten rates.  Raises UserError."""
    text = asked.get("request_rate") or FIELDS[0].start
    try:
        rate = float(text)
    except ValueError:
        raise UserError(f"request_rate is {quoted(text)}; allowed: a number of requests per second") from None
    options = {name: value for name, value in view.options.items() if name != "batch_size"}
    limits = {name: asked[name] for name in ("ttft", "tpot") if asked.get(name)}
    load = {"request_rate": rate, "requests": REQUESTS, **limits}
    made = simulate(view.state.subject(), view.state.hardware, **load, **options)
    page = parts.page(simulation_page.page(made.to_dict()))
    try:
        curve: list[Any] = [graphs.graph(loads.chart(latency_rate.frame(made), rate), view.theme)]
    except UserError as error:
        curve = [html.P(str(error), className="note")]
    return [*curve, *page]
