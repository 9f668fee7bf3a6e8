"""Ledger: how far predictions were from published figures, source by source."""

from __future__ import annotations

from typing import Any

from flask import current_app

from llmviewer.reports.web.markup import Markup, piece
from llmviewer.reports.web.view import View

#: Key of the application's configuration: a function that gives (source, address, figures, recorded error) rows.
ROWS = "LLMVIEWER_LEDGER"
NOTE = (
    "Mean error of predictions of whole requests against published figures, at the last release. None of these figures "
    "is fitted; `llmviewer calibrate ledger --rows` lists each of them."
)


def content(view: View) -> list[Any]:
    """The recorded errors, the largest last."""
    listed = sorted(current_app.config[ROWS](), key=lambda row: row[3])
    return [Markup(piece("note", NOTE) + piece("published", listed))]
