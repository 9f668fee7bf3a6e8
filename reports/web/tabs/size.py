"""Size: which chips, how many and how run, for a load within limits, with their prices."""

from __future__ import annotations

from typing import Any

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.planning.call import size
from llmviewer.reports import sizing_page
from llmviewer.reports.html import front
from llmviewer.reports.web import graphs
from llmviewer.reports.web.markup import Piece, block, page
from llmviewer.reports.web.questions import Field, answer, form, text_of
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


def content(view: View) -> list[Piece]:
    """The form, which a button answers since a search takes seconds."""
    note = "The search tries chips, layouts and number formats, and simulates the best of them; it takes seconds."
    return [form(view, FIELDS, "Size", note), *answer(view, _answered)]


def chips_of(view: View) -> list[str]:
    """The chips that are tried.  Raises UserError for too many."""
    names = [one.strip() for one in view.state.asked.get("chips", "").split(",") if one.strip()]
    if len(names) > MAX_CHIPS:
        raise UserError(f"{len(names)} chips; allowed here: at most {MAX_CHIPS}, `llmviewer size` takes any number")
    return names or [view.state.hardware]


def words_of(view: View) -> dict[str, Any]:
    """Arguments of `lv.size`: load, limits, and options of a run that it does not choose itself.  Raises UserError."""
    asked = {one.name: _number(one.name, text_of(view, one)) for one in FIELDS if one.name != "chips"}
    lengths = {name: view.sizes[name] for name in ("input_len", "output_len")}
    options = {name: value for name, value in view.options.items() if name not in (*CHOSEN, *WORKLOAD)}
    return {**lengths, **asked, **options}


def _answered(view: View) -> list[Piece]:
    """The page and the front of a sizing.  Raises UserError."""
    found = size(view.state.subject(), chips_of(view), **words_of(view)).to_dict()
    drawn = [graphs.graph(front.chart(found), view.theme)] if len(found["frontier"]) > 1 else []
    return [*drawn, block(page(sizing_page.page(found, explain=True)))]


def _number(name: str, text: str) -> Any:
    """A field's value: numbers for rates and devices, texts for limits.  Raises UserError."""
    if name not in ("request_rate", "max_gpus"):
        return text
    number = arguments.parse_size(text)
    if isinstance(number, str):
        raise UserError(f"{name} is {quoted(text)}; allowed: a number")
    return number
