"""Forms of the tabs whose answers take seconds: fields, and a button that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmviewer.core.errors import UserError
from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form.  start: its value until the visitor changes it."""

    name: str
    label: str
    start: str


def form(view: View, fields: Sequence[Field], verb: str, note: str) -> Piece:
    """The form of a tab, whose button writes the fields into the address and asks for the answer."""
    listed = [{"name": one.name, "label": one.label, "value": text_of(view, one)} for one in fields]
    return block(piece("form", listed, verb, note))


def answer(view: View, answered: Callable[[View], list[Piece]]) -> list[Piece]:
    """The answer of a tab, if the address asks for it; one line where the question has none."""
    if view.state.shown["run"] != view.state.tab:
        return []
    try:
        return answered(view)
    except UserError as error:
        return [block(piece("alerts", [str(error)]))]


def text_of(view: View, field: Field) -> str:
    """The text of a field: of the address, or where it starts; chips start with the one asked."""
    return view.state.asked.get(field.name) or field.start or view.state.hardware
