"""Network: the model's blocks and operators with their times, and the figures of the one that is chosen."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.reports.web.chosen import panel
from llmviewer.reports.web.network import network
from llmviewer.reports.web.switches import switches
from llmviewer.reports.web.view import View


def content(view: View) -> list[Any]:
    """The graph of a stage beside the panel of the chosen operator."""
    beside = html.Div([network(view), panel(view)], className="side")
    return [switches(view, ("stage", "block", "colour", "operator")), beside]
