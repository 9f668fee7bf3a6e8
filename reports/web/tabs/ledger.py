"""Ledger: how far predictions were from published figures, source by source."""

from __future__ import annotations

from flask import current_app

from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.view import View

#: Key of the application's configuration: a function that gives (source, address, figures, recorded error) rows.
ROWS = "LLMVIEWER_LEDGER"
NOTE = (
    "Mean error of predictions of whole requests against published figures, at the last release. None of these figures "
    "is fitted; the command llmviewer calibrate ledger --rows lists each of them."
)


def content(view: View) -> list[Piece]:
    """The recorded errors, the largest last."""
    listed = sorted(current_app.config[ROWS](), key=lambda row: row[3])
    return [block(piece("note", NOTE) + piece("published", listed))]
