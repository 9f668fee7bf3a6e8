"""Load: requests that arrive at a rate, simulated on a server, and latency against the rate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.reports import simulation_page
from llmviewer.reports.html import loads
from llmviewer.reports.plots import latency_rate
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, group, page, piece
from llmviewer.reports.web.questions import MOST_ANSWERS, Field, answer, form, run_words, text_of
from llmviewer.reports.web.view import View, view_of
from llmviewer.simulation.call import of_server, simulate
from llmviewer.simulation.result import Simulation

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
    return [form(view, FIELDS, "Simulate", f"{note} {_settings(view)}"), *answer(view, load_of, _answered)]


def _settings(view: View) -> str:
    """A sentence on the engine and the batching of the simulation."""
    words = of_server(view.state.hardware, run_words(view))
    return (
        f"Engine: {words.get('engine', 'none')}. Batching: {words['batching']}. Arrivals make the batches, so that the"
        " batch size does not count."
    )


def load_of(view: View) -> dict[str, Any]:
    """Arguments of `lv.simulate`.  Raises UserError."""
    asked: dict[str, Any] = {one.name: text_of(view, one) for one in FIELDS}
    try:
        asked["request_rate"] = float(asked["request_rate"])
    except ValueError:
        rate = quoted(asked["request_rate"])
        raise UserError(f"request_rate is {rate}; allowed: a number of requests per second") from None
    return {**asked, "requests": REQUESTS, **run_words(view)}


def simulation_of(view: View) -> Simulation:
    """The simulation of a view, which its page and its files share.  Raises UserError."""
    return _simulated(view.state.query())


@lru_cache(maxsize=MOST_ANSWERS)
def _simulated(query: str) -> Simulation:
    view = view_of(query, "light")
    return simulate(view.state.subject(), view.state.hardware, **load_of(view))


def _answered(view: View) -> list[Piece]:
    """The page of a simulation, and its latencies at ten rates.  Raises UserError."""
    made = simulation_of(view)
    rate = load_of(view)["request_rate"]
    try:
        drawn = loads.charts(latency_rate.frame(made), rate)
        curves = group("grid", *(graphs.graph(chart, view.theme) for chart in drawn))
    except UserError as error:
        curves = block(piece("note", str(error)))
    return [curves, block(page(simulation_page.page(made)))]
