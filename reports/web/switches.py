"""Switches inside tabs: which stage, block and operator are shown, and by what boxes are coloured."""

from __future__ import annotations

from collections.abc import Sequence

from dash import dcc, html

from llmviewer.reports.web.chosen import chosen
from llmviewer.reports.web.network import blocks, unfolded
from llmviewer.reports.web.view import View

STAGES = {"prefill": "prefill", "decode": "decode", "request": "whole request"}
#: Values of the switches that are the same for every model.
COLOURS = {"bound": "what limits the time", "time": "share of the time"}


def switches(view: View, names: Sequence[str]) -> html.Div:
    """The switches of these names."""
    return html.Div([_switch(name, *_values(view, name)) for name in names], className="switches")


def _values(view: View, name: str) -> tuple[str, dict[str, str]]:
    """Value and choices of a switch, each with its label."""
    own = view.shown_lines
    if name == "stage":
        return view.stage, {one: STAGES[one] for one in view.stages}
    if name == "block":
        return unfolded(view), {one: one for one in blocks(own)}
    if name == "operator":
        listed = [line for line in own if line.operator["block"] == unfolded(view)]
        return chosen(view).key, {line.key: line.operator["name"] for line in listed}
    return view.state.shown["colour"], COLOURS


def _switch(name: str, value: str, choices: dict[str, str]) -> html.Label:
    options = [{"label": label, "value": one} for one, label in choices.items()]
    chosen = value if value in choices else None
    identifier = {"type": "shown", "name": name}
    menu = dcc.Dropdown(options, chosen, id=identifier, clearable=False, searchable=len(choices) > 8)
    return html.Label([html.Span(name.capitalize()), menu], className="control")
