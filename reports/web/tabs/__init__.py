"""The tabs of the viewer: files with `content(view)` and a line here, or made from the declaration of a question."""

from __future__ import annotations

from importlib import import_module

from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.state import OF_FORMS
from llmviewer.reports.web.view import View

#: Name in the URL -> title.
TABS = {
    "verdict": "Verdict",
    "network": "Network",
    "roofline": "Roofline",
    "operators": "Operators",
    "memory": "Memory",
    "sweep": "Sweep",
    "compare": "Compare",
    "explain": "Explain",
    "size": "Size",
    "load": "Load",
    **{name: question.title for name, question in OF_FORMS.items()},
    "ledger": "Ledger",
}


def content(view: View) -> list[Piece]:
    """The pieces of the open tab.  Raises UserError."""
    tab = "asked" if view.state.tab in OF_FORMS else view.state.tab
    found: list[Piece] = import_module(f"{__name__}.{tab}").content(view)
    return [block(piece("unseen", TABS[view.state.tab])), *found]
