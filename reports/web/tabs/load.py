"""Load: requests that arrive at a rate, simulated on a server, and latency against the rate."""

from __future__ import annotations

from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.reports import simulation_page
from llmviewer.reports.html import loads
from llmviewer.reports.plots import latency_rate
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.questions import Field, answer, form, text_of
from llmviewer.reports.web.view import View
from llmviewer.simulation.call import simulate

FIELDS = (
    Field(name="request_rate", label="Requests per second", start="8"),
    Field(name="ttft", label="Time to first token at most", start="p99:2s"),
    Field(name="tpot", label="Time per output token at most", start="p99:50ms"),
)
#: Requests of a simulation here; `llmviewer simulate` takes any number.
REQUESTS = 4000


def content(view: View) -> list[Piece]:
    """The form, which a button answers."""
    note = f"A simulation of {REQUESTS:,} requests that arrive at random, on the engine's scheduler; it takes seconds."
    return [form(view, FIELDS, "Simulate", note), *answer(view, _answered)]


def load_of(view: View) -> dict[str, Any]:
    """Arguments of `lv.simulate`.  Raises UserError."""
    asked: dict[str, Any] = {one.name: text_of(view, one) for one in FIELDS}
    try:
        asked["request_rate"] = float(asked["request_rate"])
    except ValueError:
        rate = quoted(asked["request_rate"])
        raise UserError(f"request_rate is {rate}; allowed: a number of requests per second") from None
    options = {name: value for name, value in view.options.items() if name != "batch_size"}
    return {**asked, "requests": REQUESTS, **options}


def _answered(view: View) -> list[Piece]:
    """The page of a simulation, and its latencies at ten rates.  Raises UserError."""
    load = load_of(view)
    made = simulate(view.state.subject(), view.state.hardware, **load)
    try:
        curve: list[Piece] = [graphs.graph(loads.chart(latency_rate.frame(made), load["request_rate"]), view.theme)]
    except UserError as error:
        curve = [block(piece("note", str(error)))]
    return [*curve, block(page(simulation_page.page(made.to_dict())))]
