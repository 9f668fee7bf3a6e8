"""The viewer as a Dash application: every answer follows from the URL alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import dash_ag_grid  # noqa: F401 - Dash registers component libraries before the first call
import dash_cytoscape  # noqa: F401
from dash import ALL, Dash, Input, Output, State, no_update
from flask import Flask, Response

from llmviewer.core.errors import UserError
from llmviewer.reports.web import possible
from llmviewer.reports.web.colours import sheet
from llmviewer.reports.web.controls import controls
from llmviewer.reports.web.downloads import downloads
from llmviewer.reports.web.equivalents import footer
from llmviewer.reports.web.layout import layout, tabs
from llmviewer.reports.web.parts import alert
from llmviewer.reports.web.scripts import linked
from llmviewer.reports.web.state import State as Asked
from llmviewer.reports.web.state import packed, parsed
from llmviewer.reports.web.tabs import TABS, content
from llmviewer.reports.web.tabs.ledger import ROWS
from llmviewer.reports.web.view import View

#: The document around the application: in English, without Dash's own footer.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<div>{%config%}{%scripts%}{%renderer%}</div></body>
</html>
"""


def mount(server: Flask, ledger: Any) -> Dash:
    """Add the viewer to a server.  ledger: gives (source, address, figures, error) rows of published figures."""
    server.config[ROWS] = ledger
    app = Dash(
        "llmviewer",
        server=server,  # type: ignore[arg-type]
        assets_folder=str(Path(__file__).with_name("assets")),
        title="llmviewer",
        update_title="",
        suppress_callback_exceptions=True,
        external_stylesheets=["theme.css"],
        index_string=PAGE,
    )
    app.layout = layout
    server.add_url_rule("/theme.css", "theme", _theme)
    server.register_blueprint(downloads)
    _answers(app)
    linked(app)
    return app


def _theme() -> Response:
    return Response(sheet(), mimetype="text/css", headers={"Cache-Control": "max-age=3600"})


def _answers(app: Dash) -> None:
    """Callbacks that answer an address."""
    app.callback(
        Output("tabs", "children"),
        Output("subject", "children"),
        Output("alert", "children"),
        Output("content", "children"),
        Output("equivalent", "children"),
        Output("side", "children"),
        Output("offered", "data"),
        Input("address", "search"),
        Input("theme", "data"),
        State("offered", "data"),
        State({"type": "option", "name": ALL}, "value"),
        State({"type": "option", "name": ALL}, "id"),
    )(_answer)
    app.callback(Output("late", "children"), Input("settled", "data"), State("theme", "data"))(_late)
    app.callback(
        Output({"type": "option", "name": "config"}, "value"),
        Output("alert", "children", allow_duplicate=True),
        Input("upload", "contents"),
        prevent_initial_call=True,
    )(_uploaded)


def _answer(search: str, theme: str, offered: str, values: list[Any], names: list[dict[str, str]]) -> tuple[Any, ...]:
    """The page of an address; the controls only where they show another question than it states."""
    try:
        state = _known_tab(parsed(search))
    except UserError as error:
        return _refused(Asked(), str(error), offered, shown=True)
    shown = {one["name"]: "" if value is None else str(value) for one, value in zip(names, values, strict=True)}
    view = View(state=state, theme=theme)
    try:
        view.result  # noqa: B018 - what cannot be answered is refused before a tab is drawn
        made = content(view)
    except UserError as error:
        return _refused(state, str(error), offered, shown=not shown or shown.get("model") != state.model)
    side, key = _side(view, shown, offered)
    subject = f"{view.configuration.model.name} on {view.configuration.chip.title}"
    return tabs(state), subject, _warned(view), made, footer(view), side, key


def _known_tab(state: Asked) -> Asked:
    return state if state.tab in TABS else state.showing(tab="verdict")


def _refused(state: Asked, text: str, offered: str, *, shown: bool) -> tuple[Any, ...]:
    """The page of a question without an answer: one line, and the controls if there are none yet."""
    side = controls(state, {}) if shown else no_update
    return tabs(state), "", alert(text), [], [], side, offered


def _warned(view: View) -> list[Any]:
    return [alert(text) for text in view.result.warnings]


def _side(view: View, shown: dict[str, str], offered: str) -> tuple[Any, str]:
    """The controls, unless those on the page show this question and offer what is possible."""
    state = view.state
    key = "|".join((state.model, state.config[:40], state.hardware, state.words.get("engine", "")))
    expected = {"model": state.model, "hardware": state.hardware, "config": state.config}
    same = all(shown.get(name) == text for name, text in expected.items())
    same = same and all(_is_shown(name, text, state) for name, text in shown.items() if name not in expected)
    if same and key == offered:
        return no_update, key
    return controls(state, possible.offered(view)), key


def _is_shown(name: str, text: str, state: Asked) -> bool:
    from llmviewer.reports.web.state import default_text

    default = default_text(name)
    return (text or default) == state.words.get(name, default)


def _late(search: str, theme: str) -> Any:
    """The changes of options that were tried, which take longer than the verdict itself."""
    try:
        view = View(state=_known_tab(parsed(search)), theme=theme)
        if view.state.tab != "verdict":
            return []
        return import_module("llmviewer.reports.web.tabs.verdict").changes(view)
    except UserError:  # the answer says so
        return []


def _uploaded(contents: str | None) -> tuple[Any, Any]:
    """The config.json that was dropped, packed for the address."""
    import base64
    import binascii

    if not contents:
        return no_update, no_update
    try:
        return packed(base64.b64decode(contents.partition(",")[2], validate=True)), []
    except binascii.Error:
        return no_update, alert("the file could not be read; drop a model's config.json")
    except UserError as error:
        return no_update, alert(str(error))
