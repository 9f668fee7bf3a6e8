"""The chosen operator: shapes, counts, place on the roofline, explained time; and the switches that choose it."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.core.errors import UserError
from llmviewer.reports import format as fmt
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.page import Facts
from llmviewer.reports.web.markup import Piece, block, piece, tree
from llmviewer.reports.web.view import View
from llmviewer.result.explanation.explain import explained

HINT = "A click on an operator shows where its time comes from, down to the data sheet and the fits."
#: Choices that are the same for every model, with their labels.
STAGES = {"prefill": "prefill", "decode": "decode", "request": "whole request"}
COLOURS = {"bound": "what limits the time", "time": "share of the time"}


def chosen(view: View) -> Line:
    """The operator that the state names, or the one of the unfolded block that takes most time."""
    own = view.blocks[view.unfolded]
    named = next((line for line in view.lines if line.key == view.state.shown["operator"]), None)
    return named or max(own, key=lambda line: line.share)


def panel(view: View) -> Piece:
    """Everything that is known about the chosen operator."""
    line = chosen(view)
    operator = line.operator
    lines = [(head.title, cell.text) for head, cell in zip(operators.HEADS, line.cells, strict=True) if cell.text]
    shown = tuple(one for one in lines if one[0] not in ("Configuration", "Operator"))
    facts = [
        Facts(lines=shown),
        Facts(title="Bytes of one layer, by tensor", lines=tensor_bytes(view, line)),
        Facts(title="Formulas", lines=line.formulas),
        Facts(title="On the roofline", lines=(("Place", _place(view, line)),)),
    ]
    title = f"{operator['name']}, {line.stage}"
    return block(piece("panel", title, tuple(facts)) + _explained(view, line), "panel sticky", "Chosen operator")


def _name(line: Line) -> str:
    """The beginning of the names of an operator's numbers."""
    stage = "stages.prefill." if line.stage == "prefill" else ""
    return f"{stage}operators.{line.operator['block']}.{line.operator['name']}"


def tensor_bytes(view: View, line: Line) -> tuple[tuple[str, str], ...]:
    """Every tensor that the operator reads or writes in device memory, with its bytes."""
    try:
        root = explained(view.result, f"{_name(line)}.traffic_bytes").root
    except UserError:  # moves nothing in the pass that is shown
        return ()
    words = ((*one.name.partition(" "), fmt.traffic(one.value)) for one in root.children)
    return tuple((verb, f"{tensor} {amount}".strip()) for verb, _, tensor, amount in words)


def _place(view: View, line: Line) -> str:
    """Intensity against the ridge, and what is attained of the roof above."""
    operator, ridge = line.operator, view.answer["roofline"]["ridge_flops_per_byte"]
    if not operator["flops"] or not operator["arithmetic_intensity"]:
        return "moves data without computing"
    side = "left of" if operator["arithmetic_intensity"] < ridge else "right of"
    attained = operator["ideal_time_s"] / operator["time_s"]
    intensity = fmt.intensity(operator["arithmetic_intensity"])
    return f"{intensity} FLOP/B, {side} the ridge at {fmt.intensity(ridge)}; {fmt.percent(attained)} of the bound"


def _explained(view: View, line: Line) -> str:
    """HTML of the explained time of an operator that the visitor chose; the others cost as much as an answer."""
    if line.key != view.state.shown["operator"]:
        return piece("note", HINT)
    try:
        root = explained(view.result, f"{_name(line)}.time_s").root
    except UserError as error:
        return piece("note", str(error))
    return tree("Where the time comes from", root, "")


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
        return view.unfolded, {one: one for one in view.blocks}
    if name == "operator":
        line = chosen(view)
        listed = [one for one in view.shown_lines if one.operator["block"] == line.operator["block"]]
        return line.key, {one.key: one.operator["name"] for one in listed}
    return view.state.shown["colour"], COLOURS
