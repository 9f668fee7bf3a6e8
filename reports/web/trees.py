"""Explained numbers as nested details, which a reader opens one by one."""

from __future__ import annotations

from typing import Any

from dash import html

from llmviewer.reports.html.explanations import Branch, branch
from llmviewer.reports.web.parts import linked
from llmviewer.result.explanation.node import Node, folded

#: Levels of a tree, and parts of a sum that stand alone; `llmviewer explain` shows any number.
DEPTH, MOST = 5, 8


def tree(root: Node, *, open_root: bool = True) -> Any:
    """The tree of an explained number, its first level open."""
    return _branch(branch(folded(root, MOST, DEPTH), root.value), opened=open_root)


def _branch(one: Branch, *, opened: bool = False) -> Any:
    told: list[Any] = [
        html.Strong(one.name),
        f" {one.value} ",
        *([html.Span(one.share, className="count"), " "] if one.share else []),
        *([html.Code(one.formula), " "] if one.formula else []),
        html.Span(linked(one.source), className="note"),
    ]
    if not one.children:
        return html.P(told)
    return html.Details([html.Summary(told), *(_branch(child) for child in one.children)], open=opened)
