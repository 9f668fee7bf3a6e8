"""The viewer as a Dash application: every answer follows from the URL alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dash_ag_grid  # noqa: F401 - Dash registers component libraries before the first call
import dash_cytoscape  # noqa: F401
from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from flask import Flask, Response, request

from llmviewer.core.errors import UserError, unknown
from llmviewer.reports import verdict
from llmviewer.reports.html.page import library
from llmviewer.reports.web import fits_on, possible
from llmviewer.reports.web.controls import controls, label
from llmviewer.reports.web.downloads import downloads
from llmviewer.reports.web.equivalents import OWN, foot
from llmviewer.reports.web.graphs import sheet
from llmviewer.reports.web.layout import layout, tabs
from llmviewer.reports.web.markup import Piece, piece
from llmviewer.reports.web.state import State as Asked
from llmviewer.reports.web.state import parsed
from llmviewer.reports.web.tabs import TABS, content, network, operators
from llmviewer.reports.web.tabs.ledger import ROWS
from llmviewer.reports.web.tabs.verdict import changes
from llmviewer.reports.web.view import View

#: The document around the application: in English, without Dash's own footer.
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<div>{%config%}{%scripts%}{%renderer%}</div></body>
</html>
"""
#: Libraries that single tabs need, of 1.8 MB together.
LATER = ("dash_ag_grid", "dash_cytoscape")
SCRIPT = re.compile(r'(<script[^>]* src="([^"]*)"[^>]*></script>)')
#: Where the page's own script asks for answers.
CALLBACKS = "/_dash-update-component"
#: Tab -> what is shown below it once nothing moves.
LATE: Mapping[str, Callable[[View], str]] = {"verdict": changes, "network": network.late}
#: Published figures: source, address, number of figures, mean error.
Ledger = Callable[[], Iterable[tuple[str, str, int, float]]]


class Viewer(Dash):
    """The application, whose first HTML has the answer in short, and the question in the title and for shared links."""

    def interpolate_index(self, *, scripts: str, metas: str, **parts: Any) -> str:  # type: ignore[override]
        """The first HTML: libraries of single tabs are named in it, which the page's script loads with the tab."""
        title, summary, answer = _first(request.query_string.decode("ascii", "replace"))
        tags = SCRIPT.findall(scripts)
        later = {name: source for tag, source in tags for name in LATER if f"/{name}/" in source}
        parts |= {
            "title": piece("text", title),
            "metas": metas + piece("shared", title, summary, later),
            "scripts": "".join(tag for tag, source in tags if source not in later.values()),
            "app_entry": f'<div id="react-entry-point">{answer}</div>',
        }
        return str(super().interpolate_index(**parts))  # type: ignore[no-untyped-call]


def _first(search: str) -> tuple[str, str, str]:
    """Title and summary of an address, and the verdict as HTML, until the page's script has the whole answer.

    The summary is empty where there is no answer.
    """
    try:
        view = View(state=parsed(search))
        facts = verdict.at_once(view.answer)
        summary = "; ".join(f"{label}: {text}" for label, text, *_ in facts.lines[:2])
        return f"{view.title} · llmviewer", summary, piece("first", view.title, (facts,))
    except UserError as error:
        return "llmviewer", "", piece("first", str(error), ())


def mount(server: Flask, ledger: Ledger) -> Dash:
    """Add the viewer to a server.

    ledger: gives the published figures of the tab of this name.
    """
    server.config[ROWS] = ledger
    app = Viewer(
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
    server.add_url_rule("/plotly.min.js", "plotly", _plotly)
    server.register_blueprint(downloads)
    _callbacks(app)
    server.before_request(_check_callback(app))
    with server.test_request_context("/"):
        app.index()  # type: ignore[no-untyped-call]  # registers scripts of libraries, which other workers are asked for
    return app


def _theme() -> Response:
    return Response(sheet(), mimetype="text/css", headers={"Cache-Control": "max-age=3600"})


def _plotly() -> Response:
    return Response(library(), mimetype="text/javascript", headers={"Cache-Control": "max-age=86400"})


def _check_callback(app: Dash) -> Callable[[], None]:
    """The check of a request of the page's own script.  It raises UserError for what that script does not send."""

    def check() -> None:
        if request.path != CALLBACKS or request.method != "POST":
            return
        sent_body = request.get_json(silent=True)
        body = sent_body if isinstance(sent_body, dict) else {}
        known = app.callback_map.get(str(body.get("output")))
        if known is None:
            raise UserError("the request names no callback of the page")
        for part in ("inputs", "state"):
            sent = body.get(part) or []
            if not isinstance(sent, list) or _named(sent) != [(one["id"], one["property"]) for one in known[part]]:
                raise UserError(f"the {part} of a callback are not those of the page")
            for one in sent:
                kind = list if one["id"] in ("settled", "rows") else (str, type(None))
                if not isinstance(one.get("value"), kind):
                    raise UserError(f"the value of '{one['id']}' is of another type than the page sends")
        if not _is_of(body.get("outputs"), known["output"]):
            raise UserError("the outputs of a callback are not those of the page")

    return check


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_of(sent: object, known: Any) -> bool:
    """Whether the outputs that a request names are those of a callback: one, or several in its order."""
    several = isinstance(known, (list, tuple))
    ours = [(one.component_id, one.component_property) for one in (known if several else [known])]
    return ours == _named(_list(sent) if several else [sent])


def _named(parts: list[Any]) -> list[tuple[Any, Any] | None]:
    """Id and property of each part of a callback; None for what is none."""
    return [(one.get("id"), one.get("property")) if isinstance(one, dict) else None for one in parts]


def _callbacks(app: Dash) -> None:
    """The answer to an address, the controls and the trials, which take longer, and the theme."""
    address, theme = Input("address", "data"), Input("theme", "data")
    places = (*(Output(name, "text") for name in ("tabs", "alert", "equivalent")), Output("answer", "pieces"))
    app.callback(*places, Output("asked", "text"), address, theme)(_answer)
    offered = "offered", "data"
    app.callback(Output("side", "text"), Output(*offered), address, State(*offered))(_controls)
    app.callback(Output("late", "text"), Input("settled", "data"), prevent_initial_call=True)(_late)
    app.callback(Output("sums", "text"), Input("rows", "data"), prevent_initial_call=True)(_sums)
    app.callback(
        Output("strip", "pieces"), Input("settled", "data"), State("theme", "data"), prevent_initial_call=True
    )(_strip)
    begin = ClientsideFunction("viewer", "begin")
    app.clientside_callback(begin, Output("address", "data"), Output("theme", "data"), Input("address", "id"))  # type: ignore[no-untyped-call]


def _answer(search: str, theme: str) -> tuple[Any, ...]:
    """The page of an address, or one line that says why there is none."""
    state = Asked()
    try:
        state = parsed(search)
        view = View(state=state, theme=theme)
        _check_tab(state)
        warnings = view.result.warnings  # what cannot be answered is refused before a tab is drawn
        return tabs(state), piece("alerts", warnings), foot(view), content(view), piece("text", view.title)
    except UserError as error:
        return tabs(state), piece("alerts", [str(error)]) + _without(state), "", [], ""


def _without(state: Asked) -> str:
    """HTML of links that leave out one option of a question, and then have an answer."""
    listed = []
    for name in state.words:
        words = {other: text for other, text in state.words.items() if other != name}
        try:
            _ = View(state=replace(state, words=words)).result
        except UserError:
            continue
        listed.append((f"without {label(name).lower()}", state.words[name], f"{name}="))
    return piece("applied", listed, state.query()) if listed else ""


def _controls(search: str, offered: str) -> tuple[Any, Any]:
    """The controls where other values are possible than before, and the question on which these depend.

    Without an answer those before stay; without any before, all values are offered, or a config can be removed.
    """
    state = Asked()
    try:
        state = parsed(search)
        key = possible.key(state)
        if key == offered:
            return no_update, no_update
        view = View(state=state)
        _ = view.result  # what cannot be answered is refused
        return controls(state, possible.offered(view), view.configuration.model.name), key
    except UserError:
        return (no_update, no_update) if offered and not state.config else (controls(state, {}, OWN), "refused")


def _check_tab(state: Asked) -> None:
    """Raise UserError for a tab that does not exist."""
    if state.tab not in TABS:
        raise unknown("tab", state.tab, TABS, where="the address")


def _settled(settled: tuple[str, Any]) -> Asked:
    """The state of what the script sends: its address, and more.  Raises UserError."""
    return parsed(settled[0] if settled and isinstance(settled[0], str) else "")


def _late(settled: tuple[str, float]) -> str:
    """HTML of what takes longer than the answer itself: changes of options that were tried, factors of a difference."""
    try:
        state = _settled(settled)
        return LATE[state.tab](View(state=state)) if state.tab in LATE else ""
    except UserError:  # the answer says so
        return ""


def _sums(rows: tuple[str, list[str]]) -> str:
    """HTML of the sums of rows.  rows: the address, and keys of the rows that the table of operators shows."""
    try:
        view = View(state=_settled(rows))
        return operators.sums(view, {one for one in _list(rows[1]) if isinstance(one, str)})
    except (UserError, IndexError):  # the answer says so; no script of the page sends less
        return ""


def _strip(settled: tuple[str, float], theme: str) -> list[Piece]:
    """All chips that hold the request, below its verdict."""
    try:
        view = View(state=_settled(settled), theme=theme)
        return fits_on.content(view) if view.state.tab == "verdict" else []
    except UserError:  # the answer says so
        return []
