"""Explain: a number as a tree down to data sheets, fits, fields of the config and assumptions."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.reports.web.markup import Piece, block, piece, tree
from llmviewer.reports.web.view import View
from llmviewer.result.explanation.explain import Explanation, explained, names

NOTE = """Every leaf has its source, and the arithmetic of the tree gives the number again.  The name of an operator
leads to its time."""
#: Part of a name that stands for an operator, whose time is chosen in the tree.
ANY = "NAME"


def content(view: View) -> list[Piece]:
    """The choice of a number, and its tree."""
    number = number_of(view)
    listed = {name: name for name in (*(one for one in names() if ANY not in one), number)}
    choice = {"name": "number", "label": "Number", "value": number, "choices": listed}
    return [block(piece("switches", [choice]) + piece("note", NOTE) + _tree(view, number))]


def number_of(view: View) -> str:
    """The number that is explained: time per token, of an encoder its time, unless the state says otherwise."""
    return view.state.shown["number"] or ("tpot_s" if view.sizes["output_len"] > 1 else "ttft_s")


def explanation_of(view: View) -> Explanation:
    """The explanation of the number.  Raises UserError where the request has none."""
    return explained(view.result, number_of(view))


def _tree(view: View, number: str) -> str:
    try:
        found = explanation_of(view)
        said = [text for text in found.warnings if text not in view.result.warnings]
        notes = "".join(piece("note", text) for text in said)
        return notes + tree(number, found.root, f"?{view.state.showing(number='').query()}&number=")
    except UserError as error:  # not defined for this request
        return piece("alerts", [str(error)])
