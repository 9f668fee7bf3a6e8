"""The page of the viewer: header, controls, tabs, and the places that callbacks fill."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from llmviewer.reports.web.markup import Answer, Markup, piece
from llmviewer.reports.web.state import State
from llmviewer.reports.web.tabs import TABS

#: Values that the script and the callbacks share: the query of the address, the theme, the controls that are shown, the
#: address at which nothing moves, and the address with the rows that the table of operators shows.
STORES = {"address": "", "theme": "light", "offered": "", "settled": "", "rows": ""}


def layout() -> html.Div:
    """The page, empty until the first answer arrives."""
    question: dict[str, Any] = {"aria-label": "Question"}
    parts: dict[str, Any] = {"aria-label": "Parts of the answer"}
    return html.Div(
        [
            *(dcc.Store(id=name, data=value) for name, value in STORES.items()),
            Markup(text=piece("top")),
            html.Div(
                [
                    html.Details(
                        [html.Summary("Question"), html.Section(Markup(id="side", className="controls"), **question)],
                        id="question",
                        open=True,
                    ),
                    html.Main(
                        [
                            Markup(id="asked", className="asked"),
                            html.Nav(Markup(id="tabs", className="parts"), **parts),
                            Markup(id="alert"),
                            html.Div(Answer(id="answer", pieces=[]), id="content", tabIndex="-1"),
                            Markup(id="late", className="late"),
                            Markup(id="sums", className="strip"),
                            html.Div(Answer(id="strip", pieces=[]), className="strip"),
                        ]
                    ),
                ],
                className="columns",
            ),
            html.Footer(Markup(id="equivalent"), id="foot"),
        ]
    )


def tabs(state: State) -> str:
    """HTML of links to the tabs, each with the whole state in its address."""
    return piece(
        "tabs",
        [
            {"title": title, "query": state.showing(tab=name, run="").query(), "open": name == state.tab}
            for name, title in TABS.items()
        ],
    )
