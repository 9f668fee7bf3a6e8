"""Ledger: how far predictions were from published figures, source by source."""

from __future__ import annotations

from typing import Any

from dash import html
from flask import current_app

from llmviewer.reports import format as fmt
from llmviewer.reports.web import parts
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
    shown = html.Table(
        [
            html.Caption("Published figures"),
            html.Thead(html.Tr([html.Th(name, scope="col", className=side) for name, side in HEADS])),
            html.Tbody([_row(*row) for row in listed]),
        ]
    )
    return [
        html.P(NOTE, className="note"),
        html.Div(shown, className="scroll", tabIndex="0", role="group", **parts.named("Published figures")),
    ]


HEADS = (("Source", "left"), ("Figures", "right"), ("Mean error", "right"), ("Address", "left"))


def _row(source: str, address: str, figures: int, error: float) -> html.Tr:
    return html.Tr(
        [
            html.Th(source, scope="row", className="left"),
            html.Td(fmt.whole(figures), className="right"),
            html.Td(fmt.percent(error), className="right"),
            html.Td(parts.linked(address), className="left"),
        ]
    )
