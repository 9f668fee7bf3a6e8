"""Pages of the other views as HTML of the viewer: facts, tables, bars, and trees of explained numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dash import html

from llmviewer.reports.html.explanations import Branch, branch
from llmviewer.reports.page import Bar, Facts, Page, Table
from llmviewer.result.explanation.node import Node, folded

LINK = re.compile(r"https?://[^\s,;)]+")


def page(parts: Page) -> list[Any]:
    """The parts of a page, in order."""
    return [made for part in parts for made in _part(part)]


def _part(part: Table | Facts | Bar) -> Iterable[Any]:
    if isinstance(part, Facts):
        return facts(part)
    return [html.H3(part.title)] if isinstance(part, Bar) else table(part)


def facts(part: Facts) -> list[Any]:
    """Labels with their sentences; nothing for a part without lines but its title."""
    title = [html.H3(part.title)] if part.title else []
    if not part.lines:
        return title
    lines = [
        html.Div([html.Dt(line[0]), html.Dd(linked(", ".join(text for cell in line[1:] if (text := cell.strip()))))])
        for line in part.lines
    ]
    return [*title, html.Dl(lines, className=f"facts {part.emphasis.value}")]


def linked(text: str) -> list[Any]:
    """A text whose addresses are links."""
    found: list[Any] = []
    at = 0
    for match in LINK.finditer(text):
        address = match[0].rstrip(".")
        found += [text[at : match.start()], html.A(address, href=address, rel="noreferrer noopener", target="_blank")]
        at = match.start() + len(address)
    return [*found, text[at:]]


def table(part: Table) -> list[Any]:
    """A table that scrolls by itself if it is wider than the screen."""
    shown = [at for at, column in enumerate(part.columns) if not column.visual]
    heads = [html.Th(part.columns[at].title, scope="col", className=part.columns[at].align.value) for at in shown]
    rows = [_row(part, row.cells, row.emphasis.value + " closes" * row.closes, shown) for row in part.rows]
    if part.total:
        rows.append(_row(part, part.total, "group", shown))
    caption = [html.Caption(part.title)] if part.title else []
    made = html.Table([*caption, html.Thead(html.Tr(heads)), html.Tbody(rows)])
    scrolled = html.Div(made, className="scroll", tabIndex="0", role="group", **named(part.title or "table"))
    return [scrolled, *([html.P(part.note, className="note")] if part.note else [])]


def _row(part: Table, cells: tuple[str, ...], kind: str, shown: list[int]) -> html.Tr:
    first, *others = shown
    return html.Tr(
        [
            html.Th(cells[first], scope="row", className="left"),
            *(html.Td(cells[at], className=part.columns[at].align.value) for at in others),
        ],
        className=kind,
    )


def named(text: str, **more: str) -> dict[str, Any]:
    """Attributes of an element with a name for those who do not see it.  more: further attributes of ARIA."""
    return {"aria-label": text, **{f"aria-{name}": value for name, value in more.items()}}


def alert(text: str) -> html.P:
    """A line on what is wrong with the question."""
    return html.P(text, className="alert", role="alert")


#: Levels of a tree, and parts of a sum that stand alone; `llmviewer explain` shows any number.
DEPTH, MOST = 5, 8


def tree(root: Node, *, open_root: bool = True) -> Any:
    """The tree of an explained number, its first level open."""
    return _branch(branch(folded(root, MOST, DEPTH), root.value), opened=open_root)


def _branch(one: Branch, *, opened: bool = False) -> Any:
    told: list[Any] = [
        html.Strong(one.name),
        f" {one.value} ",
        *([html.Span(one.share, className="count"), " "] if one.share else []),
        *([html.Code(one.formula), " "] if one.formula else []),
        html.Span(linked(one.source), className="note"),
    ]
    if not one.children:
        return html.P(told)
    return html.Details([html.Summary(told), *(_branch(child) for child in one.children)], open=opened)
