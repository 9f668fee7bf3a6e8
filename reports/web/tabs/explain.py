"""Explain: the main numbers as trees down to data sheets, fits, fields of the config and assumptions."""

from __future__ import annotations

from collections.abc import Iterator

from llmviewer.core.errors import UserError
from llmviewer.reports.html.explanations import NUMBERS
from llmviewer.reports.web.markup import Piece, block, piece, trees
from llmviewer.reports.web.view import View
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.node import Node

NOTE = "Every leaf has its source, and the arithmetic of the tree gives the number again."


def content(view: View) -> list[Piece]:
    """A tree for each number that is defined."""
    return [block(piece("note", NOTE) + trees(list(_roots(view))))]


def _roots(view: View) -> Iterator[tuple[str, Node]]:
    for number in NUMBERS:
        try:
            yield number, explained(view.result, number).root
        except UserError:  # no decode steps
            continue
