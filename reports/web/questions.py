"""Forms of the tabs whose answers take seconds: fields, and a button that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from llmviewer.core.errors import UserError
from llmviewer.reports.web.parts import alert
from llmviewer.reports.web.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form.  start: its value until the visitor changes it."""

    name: str
    label: str
    start: str


def form(view: View, fields: Sequence[Field], verb: str, note: str) -> html.Div:
    """The form of a tab, whose button writes the fields into the address and asks for the answer."""
    controls = [_control(view, one) for one in fields]
    button = html.Button(verb, id="ask", n_clicks=0, className="primary")
    return html.Div([html.Div([*controls, button], className="switches"), html.P(note, className="note")])


def answer(view: View, answered: Callable[[View], list[Any]]) -> list[Any]:
    """The answer of a tab, if the address asks for it; one line where the question has none."""
    if view.state.shown["run"] != view.state.tab:
        return []
    try:
        return answered(view)
    except UserError as error:
        return [alert(str(error))]


def text_of(view: View, field: Field) -> str:
    """The text of a field: of the address, or where it starts."""
    return view.state.asked.get(field.name) or field.start


def _control(view: View, field: Field) -> html.Label:
    identifier: Any = {"type": "asked", "name": field.name}
    value = text_of(view, field)
    if field.name == "chips":
        value = value or view.state.hardware
    text = dcc.Input(value, type="text", id=identifier)
    return html.Label([html.Span(field.label), text], className="control")
