"""Forms of the tabs whose answers take seconds: fields, and a button that asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from llmviewer.reports.web.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form.  start: its value until the visitor changes it."""

    name: str
    label: str
    start: str


def form(view: View, fields: Sequence[Field], key: str, verb: str, note: str) -> html.Div:
    """The form of a tab.  key: ids of its button and answer begin with it."""
    controls = [_control(view, one, key) for one in fields]
    button = html.Button(verb, id=f"{key}-ask", n_clicks=0, className="primary")
    return html.Div([html.Div([*controls, button], className="switches"), html.P(note, className="note")])


def _control(view: View, field: Field, key: str) -> html.Label:
    identifier: Any = {"type": f"{key}-asked", "name": field.name}
    value = view.state.asked.get(field.name, field.start)
    if field.name == "chips":
        value = value or view.state.hardware
    text = dcc.Input(value, type="text", id=identifier, debounce=True)
    return html.Label([html.Span(field.label), text], className="control")
