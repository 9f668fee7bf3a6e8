"""HTML of the viewer, and the elements that hold it: few of them, since Dash visits each at every change."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dash.development.base_component import Component

from llmviewer.reports.html.explanations import branch
from llmviewer.reports.html.page import TEMPLATES, environment
from llmviewer.reports.page import Page
from llmviewer.result.explanation.node import Node, folded

if TYPE_CHECKING:
    from jinja2 import Environment

#: Templates of the viewer, and those of the report that it shares.
FOLDERS = (Path(__file__).with_name("templates"), TEMPLATES)
#: Levels of a tree, and parts of a sum that stand alone; `llmviewer explain` shows all.
DEPTH, MOST = 5, 8


class _Element(Component):
    """An element that assets/viewer.js draws.  A subclass names its properties in `_properties`."""

    _namespace = "llmviewer_web"
    _properties: ClassVar[list[str]] = []

    def __init__(self, **given: Any) -> None:
        self._children_props: list[str] = []
        self._base_nodes = ["children"]
        self._prop_names = self.available_properties = ["id", *self._properties]
        self._valid_wildcard_attributes: list[str] = []
        self.available_wildcard_properties: list[str] = []
        super().__init__(**given)  # type: ignore[no-untyped-call]


class Markup(_Element):
    """HTML of a template.  text: the HTML, in which all data is escaped."""

    _type = "Markup"
    _properties: ClassVar[list[str]] = ["text", "className"]


class Answer(_Element):
    """The open tab.  pieces: as `block`, `graphs.graph`, `network.network` and the table of operators make them."""

    _type = "Answer"
    _properties: ClassVar[list[str]] = ["pieces"]


Piece: TypeAlias = dict[str, Any]


def block(text: str, look: str = "", label: str = "") -> Piece:
    """A piece of HTML.  look: its class.  label: of a piece that scrolls by itself."""
    return {"html": text, "look": look, "label": label}


def group(look: str, *pieces: Piece) -> Piece:
    """Pieces side by side or below each other, by the class of the element around them."""
    return {"pieces": pieces, "look": look}


@cache
def templates() -> Environment:
    """The templates of the viewer and those of the report."""
    return environment(*FOLDERS)


@cache
def _pieces() -> Any:
    return templates().get_template("pieces.html.j2").module


def piece(name: str, *given: Any) -> str:
    """HTML of a macro of templates/pieces.html.j2 for these values."""
    return str(getattr(_pieces(), name)(*given))


def page(parts: Page) -> str:
    """HTML of a page of another view: facts, tables, and the titles of bars."""
    return piece("page", parts)


def tree(title: str, root: Node, address: str) -> str:
    """HTML of an explained number, whose parts a reader opens one by one.

    address: query to which the name of a number is added that has a page of its own.
    """
    return piece("tree", title, branch(folded(root, MOST, DEPTH, closed=True), root.value), address)
