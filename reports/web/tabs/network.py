"""Network: the model's blocks and operators with their times, and the figures of the one that is chosen."""

from __future__ import annotations

from llmviewer.reports.web.chosen import panel, switches
from llmviewer.reports.web.markup import Piece, group
from llmviewer.reports.web.network import network
from llmviewer.reports.web.view import View


def content(view: View) -> list[Piece]:
    """The graph of a stage beside the panel of the chosen operator."""
    return [switches(view, ("stage", "block", "colour", "operator")), group("side", network(view), panel(view))]
