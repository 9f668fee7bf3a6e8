"""Size: which chips, how many and how run, for a load within limits, with their prices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.planning.call import chips_of as chips_named
from llmviewer.planning.call import size
from llmviewer.planning.options import FRONTS, SIZE, STEP_LIMITS
from llmviewer.planning.sizing import Sizing
from llmviewer.planning.space import LAYOUT, SEARCHED
from llmviewer.reports import sizing_page
from llmviewer.reports.html import front
from llmviewer.reports.web import graphs
from llmviewer.reports.web.controls import label
from llmviewer.reports.web.markup import Piece, block, page
from llmviewer.reports.web.questions import MOST_ANSWERS, Field, answer, form, run_words, text_of
from llmviewer.reports.web.view import View, view_of
from llmviewer.result.costs import usual
from llmviewer.techniques.options import WORKLOAD

#: What is asked, with the values of a first look.
FIELDS = (
    Field(name="request_rate", label="Requests per second", start="10"),
    Field(name="concurrency", label="Or users at once", start=""),
    Field(name="ttft", label="Time to first token at most", start="p99:2s"),
    Field(name="tpot", label="Time per output token at most", start="p99:50ms"),
    Field(name="max_gpus", label="Devices at most", start="64"),
    Field(name="chips", label="Chips", start=""),
)
#: Most chips of one question: each takes a second or more.
MAX_CHIPS = 6


def content(view: View) -> list[Piece]:
    """The form, which a button answers since a search takes seconds."""
    note = "The search tries chips, layouts and number formats, and simulates the best of them; it takes seconds."
    return [form(view, FIELDS, "Size", f"{note} {_settings(view)}"), *answer(view, words_of, _answered)]


def _settings(view: View) -> str:
    """A sentence on the options that the sizing takes from the controls, and those that it chooses by itself."""
    words = {name: value for name, value in run_words(view).items() if name not in WORKLOAD}
    taken = ", ".join(f"{label(name)} {value}" for name, value in words.items()) or "nothing"
    chosen = ", ".join(label(name) for name in searched(words))
    return (
        f"Set on the left: {taken}. The search chooses what is not set there: {chosen}. The batch size does not count."
    )


def searched(words: dict[str, Any]) -> list[str]:
    """Options that a sizing chooses where these are set; sizes of groups only where none of them is."""
    names = [name for name in (*SEARCHED, *STEP_LIMITS, "batching") if name not in words]
    return [name for name in names if name not in LAYOUT or not set(LAYOUT) & set(words)]


def chips_of(view: View) -> list[str]:
    """The chips that are tried.  Raises UserError for too many and for unknown ones."""
    names = [one.strip() for one in view.state.asked.get("chips", "").split(",") if one.strip()]
    count = len(chips_named(names)) if names else 1
    if count > MAX_CHIPS:
        raise UserError(f"{count} chips; allowed here: at most {MAX_CHIPS}, `llmviewer size` takes any number")
    return names or [view.state.hardware]


def words_of(view: View) -> dict[str, Any]:
    """Arguments of `lv.size`: load, limits, and the options that are set on the page.  Raises UserError."""
    texts = {one.name: text_of(view, one) for one in FIELDS if one.name != "chips"}
    texts.pop("request_rate" if texts["concurrency"] else "concurrency")  # users in place of a rate
    asked = {name: _number(name, text) for name, text in texts.items()}
    figure = _figure(chips_of(view))
    given = {} if figure == SIZE["front"].default else {"front": figure}
    return {**asked, **given, **run_words(view)}


def _figure(chips: list[str]) -> str:
    """Figure that the front sets against TPOT: dollars if all chips have a price, else devices.  Raises UserError."""
    prices, devices, dollars = usual().prices, *FRONTS
    return dollars if all(prices.of(one) is not None for one in chips_named(chips)) else devices


def sizing_of(view: View) -> Sizing:
    """The sizing of a view, which its page and its files share.  Raises UserError."""
    return _sized(view.state.query())


@lru_cache(maxsize=MOST_ANSWERS)
def _sized(query: str) -> Sizing:
    view = view_of(query, "light")
    return size(view.state.subject(), chips_of(view), **words_of(view))


def _answered(view: View) -> list[Piece]:
    """The page and the front of a sizing.  Raises UserError."""
    found = sizing_of(view)
    answer = found.to_dict()
    drawn = [graphs.graph(front.chart(answer), view.theme)] if len(answer["frontier"]) > 1 else []
    return [*drawn, block(page(sizing_page.page(found, explain=True)))]


def _number(name: str, text: str) -> Any:
    """A field's value: numbers for rates and devices, texts for limits.  Raises UserError."""
    if name not in ("request_rate", "concurrency", "max_gpus"):
        return text
    number = arguments.parse_size(text)
    if isinstance(number, str):
        raise UserError(f"{name} is {quoted(text)}; allowed: a number")
    return number
