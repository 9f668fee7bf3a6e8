"""HTML of the viewer: text from templates as one element each, which the browser draws at once.

Dash visits every component of a page at every change, so that a table of hundreds of them takes a tenth of a second.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dash.development.base_component import Component

from llmviewer.reports import format as fmt
from llmviewer.reports.html import provenance
from llmviewer.reports.html.explanations import branch
from llmviewer.reports.page import Page
from llmviewer.result.explanation.node import Node, folded

if TYPE_CHECKING:
    from jinja2 import Environment

#: Templates of the viewer, and those of the report that it shares.
FOLDERS = (Path(__file__).with_name("templates"), Path(__file__).parents[1] / "html" / "templates")
#: Levels of a tree, and parts of a sum that stand alone; `llmviewer explain` shows all.
DEPTH, MOST = 5, 8


class Markup(Component):
    """An element with HTML of a template, which assets/viewer.js draws.  text: the HTML, with all data escaped."""

    _children_props: list[str] = []  # noqa: RUF012 - read by Dash
    _base_nodes = ["children"]  # noqa: RUF012
    _namespace = "llmviewer_web"
    _type = "Markup"

    def __init__(self, text: str = "", id: str = "", className: str = "") -> None:  # noqa: A002, N803 - names of Dash
        self._prop_names = ["id", "text", "className"]
        self._valid_wildcard_attributes: list[str] = []
        self.available_properties = self._prop_names
        self.available_wildcard_properties: list[str] = []
        given = {"text": text, "className": className, **({"id": id} if id else {})}
        super().__init__(**given)  # type: ignore[no-untyped-call]


@cache
def environment() -> Environment:
    """The templates, in which all data is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.globals |= {"fmt": fmt}
    found.filters["link"] = provenance.link
    return found


@cache
def _pieces() -> Any:
    return environment().get_template("pieces.html.j2").module


def piece(name: str, *given: Any) -> str:
    """HTML of a macro of templates/pieces.html.j2 for these values."""
    return str(getattr(_pieces(), name)(*given))


def page(parts: Page) -> str:
    """HTML of a page of another view: facts, tables, and the titles of bars."""
    return piece("page", parts)


def trees(listed: list[tuple[str, Node]]) -> str:
    """HTML of explained numbers, each after its title, whose parts a reader opens one by one."""
    return piece("trees", [(title, branch(folded(root, MOST, DEPTH), root.value)) for title, root in listed])
