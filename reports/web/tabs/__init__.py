"""The tabs of the viewer.  A tab is a file with `content(view)`, a line here, and a row of docs/guide/web.md."""

from __future__ import annotations

from importlib import import_module

from llmviewer.reports.web.markup import Piece, block, piece
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
    "ledger": "Ledger",
}


def content(view: View) -> list[Piece]:
    """The pieces of the open tab.  Raises UserError."""
    found: list[Piece] = import_module(f"{__name__}.{view.state.tab}").content(view)
    return [block(piece("unseen", TABS[view.state.tab])), *found]
