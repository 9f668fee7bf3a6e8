"""Network: the model's blocks and operators with their times, alone or against another configuration."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.reports import why_page
from llmviewer.reports.web import against, chains
from llmviewer.reports.web.chosen import PLAY, panel, switches
from llmviewer.reports.web.markup import Piece, block, group, page, piece
from llmviewer.reports.web.network import graph, network, notes
from llmviewer.reports.web.tabs.compare import why_between
from llmviewer.reports.web.view import REQUEST, View

#: Stage -> metric that tells its time.
METRICS = {"prefill": "ttft_s", "decode": "tpot_s", REQUEST: "e2e_s"}


def content(view: View) -> list[Piece]:
    """The graph of a stage, or the difference to another configuration in it, beside the panel of the operator."""
    names = ("stage", "block", "operator") if view.state.shown["against"] else ("stage", "block", "colour", "operator")
    beside = group("side", _drawn(view), panel(view))
    return [switches(view, names, chains.switch(view), against.menu(view)), block(piece("buttons", PLAY)), beside]


def _drawn(view: View) -> Piece:
    try:
        other = against.other(view)
        if other is None:
            return network(view)
        both = against.Against(first=view, last=other)
        return group("", *both.above(), both.drawn(graph(view)), both.below(), notes(view))
    except UserError as error:  # of the other configuration
        return group("", block(piece("alerts", [f"B: {error}"])), network(view))


def late(view: View) -> str:
    """HTML of the factors of the difference that is drawn, whose split takes longer than the graph."""
    other = against.other(view)
    if other is None:
        return ""
    found = why_between(view, other, METRICS[view.stage])
    return piece("heading", "Why") + page(why_page.page(found)[:2])
