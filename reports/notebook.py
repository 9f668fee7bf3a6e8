"""An answer in a notebook: its page as HTML, tables with a title folded."""

from __future__ import annotations

from html import escape

from llmviewer.reports.page import Align, Bar, Emphasis, Facts, Page, Part, Row, Table, plain

#: Colours of bar segments, distinct in light and dark themes and in greyscale.
SHADES = ("#0072b2", "#56b4e9", "#e69f00", "#cc79a7")


def html(page: Page) -> str:
    """Returns plain HTML that stays readable without its styles."""
    return f'<div style="max-width:70em">{"".join(map(_part, page))}</div>'


def _part(part: Part) -> str:
    if isinstance(part, Bar):
        return _bar(part)
    if isinstance(part, Facts):
        body = _facts(part)
        return _folded(part.title, body) if part.emphasis is Emphasis.FAINT and part.title else _under(part.title, body)
    body = (f"<p>{_text(part.note)}</p>" if part.note else "") + _table(part)
    return _folded(part.title, body) if part.title else body


def _folded(title: str, body: str) -> str:
    return f"<details><summary><b>{_text(title)}</b></summary>{body}</details>"


def _under(title: str, body: str) -> str:
    return f"<p><b>{_text(title)}</b></p>{body}" if title else body


def _facts(facts: Facts) -> str:
    mark = "⚠ " if facts.emphasis is Emphasis.WARNING else ""
    lines = ((f"{mark}{line[0]}" if line[0] else "", *line[1:]) for line in facts.lines)
    rows = "".join(
        "<tr>" + "".join(_cell("th" if at == 0 else "td", words, Align.LEFT) for at, words in enumerate(line)) + "</tr>"
        for line in lines
    )
    return f"<table>{rows}</table>" if rows else ""


def _table(table: Table) -> str:
    kept = [at for at, column in enumerate(table.columns) if not column.visual]
    aligned = [table.columns[at].align for at in kept]
    heads = "".join(_cell("th", table.columns[at].title, align) for at, align in zip(kept, aligned, strict=True))
    total = (Row(cells=table.total, emphasis=Emphasis.GROUP),) if table.total else ()
    rows = "".join(_row(row, kept, aligned) for row in (*table.rows, *total))
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div style="overflow-x:auto;white-space:nowrap">{body}</div>'


def _row(row: Row, kept: list[int], aligned: list[Align]) -> str:
    tag = "td" if row.emphasis is Emphasis.PLAIN else "th"
    cells = (_cell(tag, row.cells[at], align) for at, align in zip(kept, aligned, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, words: str, align: Align) -> str:
    return f'<{tag} style="text-align:{align.value}">{_text(words.strip())}</{tag}>'


def _bar(bar: Bar) -> str:
    """Returns the segments side by side, with a mark at the budget."""
    parts = "".join(
        f'<span title="{_text(segment.label)}" style="display:inline-block;height:1em;background:{shade};'
        f'width:{100.0 * segment.value / bar.scale:.2f}%"></span>'
        for segment, shade in zip(bar.segments, SHADES, strict=False)
    )
    mark = (
        f'<span title="{_text(bar.mark_label)}" style="position:absolute;top:0;height:1em;border-left:2px solid;'
        f'left:{100.0 * bar.mark / bar.scale:.2f}%"></span>'
    )
    frame = "position:relative;width:100%;max-width:40em;outline:1px solid #888;line-height:0"
    return f'<p><b>{_text(bar.title)}</b></p><div style="{frame}">{parts}{mark}</div>'


def _text(words: str) -> str:
    return escape(plain(words))
