"""The tabs of the viewer.  A tab is a file with `content(view)`, a line here, and its documentation in docs/web.md."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dash import html

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


def content(view: View) -> list[Any]:
    """The components of the open tab.  Raises UserError."""
    found: list[Any] = import_module(f"{__name__}.{view.state.tab}").content(view)
    return [html.H2(TABS[view.state.tab], className="unseen"), *found]
