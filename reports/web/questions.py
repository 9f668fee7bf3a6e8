"""Forms of the tabs whose answers take seconds: fields, a button that asks, and the options of the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.view import View

#: Size of a single run: under a load, arrivals make the batches.
BATCH = "batch_size"
#: Answers of a form that a process keeps, for the page and its files.
MOST_ANSWERS = 8


@frozen
class Field:
    """One field of a form.  start: its value until the visitor changes it."""

    name: str
    label: str
    start: str


def form(view: View, fields: Sequence[Field], verb: str, note: str) -> Piece:
    """The form of a tab, whose button writes the fields into the address and asks for the answer."""
    listed = [{"name": one.name, "label": one.label, "value": text_of(view, one)} for one in fields]
    return block(piece("form", listed, verb, note))


def is_asked(view: View) -> bool:
    """Whether the address asks for the answer of the open tab."""
    return view.state.shown["run"] == view.state.tab


def answer(view: View, asked: Callable[[View], object], answered: Callable[[View], list[Piece]]) -> list[Piece]:
    """The answer of a tab, if the address asks for it; one line where the question has none.

    asked: reads the fields, whose errors are shown before an answer is asked for.
    """
    try:
        asked(view)
        return answered(view) if is_asked(view) else []
    except UserError as error:
        return [block(piece("alerts", [str(error)]))]


def text_of(view: View, field: Field) -> str:
    """The text of a field: of the address, or where it starts; chips start with the one asked."""
    first = view.state.hardware if field.name == "chips" else ""
    return view.state.asked.get(field.name) or field.start or first


def run_words(view: View) -> dict[str, Any]:
    """Options of the run that are stated, for `lv.simulate` and `lv.size`, lengths included.  Raises UserError."""
    return {name: value for name, value in view.options.items() if name != BATCH}
