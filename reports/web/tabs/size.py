"""Size: which chips, how many and how run, for a load within limits, with their prices."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.planning.call import size
from llmviewer.reports import sizing_page
from llmviewer.reports.html import front
from llmviewer.reports.web import graphs, parts
from llmviewer.reports.web.questions import Field, form
from llmviewer.reports.web.view import View
from llmviewer.techniques.options import WORKLOAD

#: What is asked, with the values of a first look.
FIELDS = (
    Field(name="request_rate", label="Requests per second", start="10"),
    Field(name="ttft", label="Time to first token at most", start="p99:2s"),
    Field(name="tpot", label="Time per output token at most", start="p99:50ms"),
    Field(name="max_gpus", label="Devices at most", start="64"),
    Field(name="chips", label="Chips", start=""),
)
#: Most chips of one question: each takes a second or more.
MAX_CHIPS = 6
#: Options of a run that a sizing chooses itself, or states for a single run.
CHOSEN = ("batch_size", "tensor_parallel_size", "data_parallel_size", "expert_parallel_size", "engine")


def content(view: View) -> list[Any]:
    """The form, which a button answers since a search takes seconds."""
    note = "The search tries chips, layouts and number formats, and simulates the best of them; it takes seconds."
    return [form(view, FIELDS, "size", "Size", note), html.Div(id="size-answer")]


def answered(view: View, asked: dict[str, str]) -> list[Any]:
    """The page and the front of a sizing.  Raises UserError."""
    chips = [one.strip() for one in asked.get("chips", "").split(",") if one.strip()] or [view.state.hardware]
    if len(chips) > MAX_CHIPS:
        raise UserError(f"{len(chips)} chips; allowed here: at most {MAX_CHIPS}, `llmviewer size` takes any number")
    limits = {name: text for name, text in asked.items() if name != "chips" and text}
    limits.setdefault("request_rate", "10")
    options = {name: value for name, value in view.options.items() if name not in (*CHOSEN, *WORKLOAD)}
    lengths = {name: view.sizes[name] for name in ("input_len", "output_len")}
    words = {**lengths, **{name: _number(name, text) for name, text in limits.items()}, **options}
    answer = size(view.state.subject(), chips, **words).to_dict()
    drawn = [graphs.graph(front.chart(answer), view.theme)] if len(answer["frontier"]) > 1 else []
    return [*drawn, *parts.page(sizing_page.page(answer, explain=True))]


def _number(name: str, text: str) -> Any:
    """A field's value: numbers for rates and devices, texts for limits.  Raises UserError."""
    if name not in ("request_rate", "max_gpus"):
        return text
    number = arguments.parse_size(text)
    if isinstance(number, str):
        raise UserError(f"{name} is {quoted(text)}; allowed: a number")
    return number
