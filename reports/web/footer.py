"""The same question elsewhere: as a command, a Python call and an address, and the answer as files."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from llmviewer.reports.web.equivalents import equivalents
from llmviewer.reports.web.view import View

#: File -> what it is.
FILES = {
    "report.html": "Report",
    "analysis.json": "JSON",
    "operators.csv": "Operators (CSV)",
    "sweep.csv": "Sweep (CSV)",
    "roofline.png": "Roofline (PNG)",
}


def footer(view: View) -> list[Any]:
    """Command, call and downloads of a view."""
    query = view.state.query()
    command, call = equivalents(view)
    files = [html.A(title, href=f"download/{name}?{query}", className="button") for name, title in FILES.items()]
    return [
        _copied("command", "On the command line", command),
        _copied("call", "In Python", call),
        html.Div([html.Span("Download: "), *files], className="above"),
    ]


def _copied(key: str, title: str, text: str) -> html.Div:
    code = html.Code(text, id=key, tabIndex="0")
    button = dcc.Clipboard(target_id=key, title=f"Copy: {title.lower()}", className="copy")
    return html.Div([html.Span(title), code, button], className="equivalent")
