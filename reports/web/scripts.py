"""Callbacks that run in the browser: controls to the address, links between pictures, the theme."""

from __future__ import annotations

from dash import ALL, ClientsideFunction, Dash, Input, Output, State

#: Sizes with a slider.
from llmviewer.reports.web.controls import SLIDERS

SCRIPT = "viewer"


def linked(app: Dash) -> None:
    """Add the callbacks, all of them functions of assets/viewer.js."""
    _address(app)
    _pictures(app)
    _call(app, "theme", Output("theme", "data"), Input("address", "id"))
    _call(app, "settled", Output("settled", "data"), Input("address", "search"))
    for name in SLIDERS:
        field, slider = ({"type": kind, "name": name} for kind in ("option", "slider"))
        _call(
            app,
            "slid",
            [Output(field, "value", allow_duplicate=True), Output(slider, "value")],
            [Input(slider, "value"), Input(field, "value")],
            prevent_initial_call=True,
        )
    figures, whole = {"type": "figure", "name": ALL}, {"type": "option", "name": "set"}
    _call(
        app,
        "figures",
        Output(whole, "value", allow_duplicate=True),
        Input(figures, "value"),
        State(figures, "id"),
        State(whole, "value"),
        prevent_initial_call=True,
    )


def _address(app: Dash) -> None:
    """Controls, switches and buttons change the address; the server answers it."""
    option, shown = ({"type": kind, "name": ALL} for kind in ("option", "shown"))
    _call(
        app,
        "changed",
        Output("address", "search"),
        Input(option, "value"),
        Input(shown, "value"),
        State(option, "id"),
        State(shown, "id"),
        State("defaults", "data"),
        prevent_initial_call=True,
    )
    asked = {"type": "asked", "name": ALL}
    _call(
        app,
        "asked",
        Output("address", "search", allow_duplicate=True),
        Input("ask", "n_clicks"),
        State(asked, "value"),
        State(asked, "id"),
        prevent_initial_call=True,
    )
    for function, identifier, event in (
        ("tapped", "network", "tapNodeData"),
        ("clicked", "roofline", "clickData"),
        ("selected", "operators", "selectedRows"),
        ("kept", "keep", "n_clicks"),
        ("forgotten", "forget", "n_clicks"),
        ("removed", "remove", "n_clicks"),
    ):
        target = Output("address", "search", allow_duplicate=True)
        _call(app, function, target, Input(identifier, event), prevent_initial_call=True)


def _pictures(app: Dash) -> None:
    """A hovered operator is marked in the other picture too."""
    target = Output("hovered", "data", allow_duplicate=True)
    _call(app, "mark_node", target, Input("roofline", "hoverData"), prevent_initial_call=True)
    _call(app, "mark_point", target, Input("network", "mouseoverNodeData"), prevent_initial_call=True)


def _call(app: Dash, function: str, *arguments: object, **more: object) -> None:
    app.clientside_callback(ClientsideFunction(SCRIPT, function), *arguments, **more)  # type: ignore[no-untyped-call]
