"""The page of the viewer: header, controls, tabs, and the places that callbacks fill."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from llmviewer.reports.web.parts import named
from llmviewer.reports.web.state import SHOWN, State, default_text
from llmviewer.reports.web.tabs import TABS
from llmviewer.techniques.options import OPTIONS

#: Values of controls that the address leaves out.
DEFAULTS = {**{name: default_text(name) for name in OPTIONS}, **SHOWN, "config": ""}


#: Look of an answer while the next one takes its time.
FADED = {"visibility": "visible", "opacity": 0.5}


def layout() -> html.Div:
    """The page, empty until the first answer arrives."""
    stores: dict[str, Any] = {"theme": "light", "offered": "", "settled": "", "hovered": "", "defaults": DEFAULTS}
    return html.Div(
        [
            dcc.Location(id="address", refresh=False),
            *(dcc.Store(id=name, data=value) for name, value in stores.items()),
            html.A("Skip to the answer", href="#content", className="skip"),
            html.Header([html.H1("llmviewer"), html.P(id="subject", className="lead", role="status")]),
            html.Div(
                [
                    html.Details(
                        [html.Summary("Question"), html.Section(id="side", className="controls", **named("Question"))],
                        id="question",
                        open=True,
                    ),
                    html.Main(
                        [
                            html.Nav(id="tabs", className="parts", **named("Parts of the answer")),
                            html.Div(id="alert"),
                            dcc.Loading(
                                html.Div(id="content", tabIndex="-1"), delay_show=400, overlay_style=FADED, type="dot"
                            ),
                            html.Div(id="late", className="late"),
                        ]
                    ),
                ],
                className="columns",
            ),
            html.Footer(id="equivalent"),
        ]
    )


def tabs(state: State) -> list[Any]:
    """Links to the tabs, each with the whole state in its address."""
    return [
        dcc.Link(
            title,
            href=f"?{state.showing(tab=name).query()}",
            className="part chosen" if name == state.tab else "part",
            title="open" if name == state.tab else "",
        )
        for name, title in TABS.items()
    ]
