"""Switches inside tabs: which stage, block and operator are shown, and by what boxes are coloured."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.reports.web.chosen import chosen
from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.network import blocks, unfolded
from llmviewer.reports.web.view import View

#: Choices that are the same for every model, with their labels.
STAGES = {"prefill": "prefill", "decode": "decode", "request": "whole request"}
COLOURS = {"bound": "what limits the time", "time": "share of the time"}


def switches(view: View, names: Sequence[str]) -> Piece:
    """The switches of these names."""
    listed = []
    for name in names:
        value, choices = _values(view, name)
        listed.append({"name": name, "label": name.capitalize(), "value": value, "choices": choices})
    return block(piece("switches", listed))


def _values(view: View, name: str) -> tuple[str, dict[str, str]]:
    """Value and choices of a switch, each with its label."""
    if name == "stage":
        return view.stage, {one: STAGES[one] for one in view.stages}
    if name == "block":
        return unfolded(view), {one: one for one in blocks(view.shown_lines)}
    if name == "operator":
        line = chosen(view)
        listed = [one for one in view.shown_lines if one.operator["block"] == line.operator["block"]]
        return line.key, {one.key: one.operator["name"] for one in listed}
    return view.state.shown["colour"], COLOURS
