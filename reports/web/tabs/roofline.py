"""Roofline: every operator under the roofs of the chip, linked with the network."""

from __future__ import annotations

from llmviewer.reports.html import roofline
from llmviewer.reports.web import chains, graphs
from llmviewer.reports.web.chosen import panel, switches
from llmviewer.reports.web.markup import Piece, group
from llmviewer.reports.web.network import network
from llmviewer.reports.web.view import View

GRAPH = "roofline"


def content(view: View) -> list[Piece]:
    """The roofline over the network; what is hovered or clicked in one is marked in the other."""
    chart = graphs.graph(roofline.chart([view.answer], view.lines), view.theme, GRAPH)
    beside = group("side", group("", chart, network(view)), panel(view))
    return [switches(view, ("stage", "block", "operator"), chains.switch(view)), beside]
