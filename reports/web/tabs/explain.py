"""Explain: the main numbers as trees down to data sheets, fits, fields of the config and assumptions."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.core.errors import UserError
from llmviewer.reports.html.explanations import NUMBERS
from llmviewer.reports.web.parts import tree
from llmviewer.reports.web.view import View
from llmviewer.result.explanation.explain import explained


def content(view: View) -> list[Any]:
    """A tree for each number that is defined."""
    note = "Every leaf has its source, and the arithmetic of the tree gives the number again."
    return [html.P(note, className="note"), *(made for number in NUMBERS for made in _tree(view, number))]


def _tree(view: View, number: str) -> list[Any]:
    try:
        root = explained(view.result, number).root
    except UserError:  # no decode steps
        return []
    return [html.H3(number), html.Div(tree(root), className="tree")]
