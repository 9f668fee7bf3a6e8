"""The page of the viewer: header, controls, tabs, and the places that callbacks fill."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from llmviewer.reports.web.markup import Markup, piece
from llmviewer.reports.web.state import State
from llmviewer.reports.web.tabs import TABS

#: Look of an answer while the next one takes its time.
FADED = {"visibility": "visible", "opacity": 0.5}


def layout() -> html.Div:
    """The page, empty until the first answer arrives."""
    answer = html.Div(id="content", tabIndex="-1")
    question: dict[str, Any] = {"aria-label": "Question"}
    parts: dict[str, Any] = {"aria-label": "Parts of the answer"}
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            *(dcc.Store(id=name, data=value) for name, value in (("theme", "light"), ("offered", ""))),
            *(dcc.Store(id=name, data="") for name in ("settled", "marked")),
            Markup(piece("top")),
            html.Div(
                [
                    html.Details(
                        [html.Summary("Question"), html.Section(Markup(id="side", className="controls"), **question)],
                        id="question",
                        open=True,
                    ),
                    html.Main(
                        [
                            html.Nav(Markup(id="tabs", className="parts"), **parts),
                            Markup(id="alert"),
                            dcc.Loading(answer, delay_show=400, overlay_style=FADED, type="dot"),
                            Markup(id="late", className="late"),
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
