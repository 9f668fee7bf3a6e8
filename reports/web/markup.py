"""HTML of the viewer, and the elements that hold it: few of them, since Dash visits each at every change."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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


def block(text: str, look: str = "") -> Piece:
    """A piece of HTML.  look: its class."""
    return {"html": text, "look": look}


def group(look: str, *pieces: Piece) -> Piece:
    """Pieces side by side or below each other, by the class of the element around them."""
    return {"pieces": pieces, "look": look}


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
