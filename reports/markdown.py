"""A page as GitHub-flavoured Markdown, with all columns and without bars."""

from __future__ import annotations

from llmviewer.reports.page import Align, Bar, Emphasis, Facts, Page, Part, Row, Table, plain


def text(page: Page) -> str:
    """Returns the page as headings, lists and tables."""
    return "\n\n".join(map(_part, page)) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, Bar):
        return f"## {_cell(part.title)}"
    return _facts(part) if isinstance(part, Facts) else _table(part)


def _facts(facts: Facts) -> str:
    lines = [_fact(*map(_cell, line)) for line in facts.lines]
    return "\n".join(([f"## {_cell(facts.title)}", ""] if facts.title else []) + lines)


def _fact(label: str, *words: str) -> str:
    text = ", ".join(word.strip() for word in words if word.strip())
    return f"- **{label}**: {text}" if label else f"- {text}"


def _table(table: Table) -> str:
    shown = [index for index, column in enumerate(table.columns) if not column.visual]
    columns = [table.columns[index] for index in shown]
    lines = [f"## {_cell(table.title)}", ""] if table.title else []
    lines += [_cell(table.note), ""] if table.note else []
    lines.append(_line(tuple(_cell(column.title) for column in columns)))
    lines.append(_line(tuple("---" if column.align is Align.LEFT else "---:" for column in columns)))
    lines += [_line(_cells(row, shown)) for row in table.rows]
    if table.total:
        lines.append(_line(_cells(Row(cells=table.total, emphasis=Emphasis.GROUP), shown)))
    return "\n".join(lines)


def _cells(row: Row, shown: list[int]) -> tuple[str, ...]:
    cells = (_cell(row.cells[index].strip()) for index in shown)
    if row.emphasis is Emphasis.PLAIN:
        return tuple(cells)
    return tuple(f"**{cell}**" if cell else cell for cell in cells)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(words: str) -> str:
    """Returns text escaped for a table cell."""
    escaped = plain(words)
    for mark in ("\\", "|", "*", "<", "`", "[", "]"):  # brackets make links, of javascript: too
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
