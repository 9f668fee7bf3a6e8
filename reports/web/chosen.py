"""The panel of the chosen operator: shapes, counts, bytes by tensor, place on the roofline, explained time."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.reports import format as fmt
from llmviewer.reports.html import operators
from llmviewer.reports.html.operators import Line
from llmviewer.reports.page import Facts
from llmviewer.reports.web.markup import Piece, block, piece, trees
from llmviewer.reports.web.network import blocks, unfolded
from llmviewer.reports.web.view import View
from llmviewer.result.explanation.explain import explained

#: Bytes of an operator by what they are -> field.
BYTES = {
    "weights": "weight_read_bytes",
    "activations read": "activation_read_bytes",
    "activations written": "activation_write_bytes",
    "KV cache read": "kv_read_bytes",
    "KV cache written": "kv_write_bytes",
}


def chosen(view: View) -> Line:
    """The operator that the state names, or the one of the unfolded block that takes most time."""
    own = blocks(view.shown_lines)[unfolded(view)]
    named = next((line for line in view.lines if line.key == view.state.shown["operator"]), None)
    return named or max(own, key=lambda line: line.share)


def panel(view: View) -> Piece:
    """Everything that is known about the chosen operator."""
    line = chosen(view)
    operator = line.operator
    lines = [(head.title, cell.text) for head, cell in zip(operators.HEADS, line.cells, strict=True) if cell.text]
    shown = tuple(one for one in lines if one[0] not in ("Configuration", "Operator"))
    moved = tuple((name, fmt.traffic(operator[field])) for name, field in BYTES.items() if operator.get(field))
    tensors = (("Reads", ", ".join(operator["inputs"])), ("Writes", ", ".join(operator["outputs"])))
    facts = [
        Facts(lines=shown),
        Facts(title="Bytes of one layer", lines=(*moved, *(one for one in tensors if one[1]))),
        Facts(title="Formulas", lines=line.formulas),
        Facts(title="On the roofline", lines=(("Place", _place(view, line)),)),
    ]
    title = f"{operator['name']}, {line.stage}"
    return block(piece("panel", title, tuple(facts)) + _explained(view, line), "panel sticky")


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
    start = "stages.prefill." if line.stage == "prefill" else ""
    try:
        root = explained(view.result, f"{start}operators.{line.operator['name']}.time_s").root
    except UserError as error:
        return piece("note", str(error))
    return trees([("Where the time comes from", root)])
