"""A page as text for a terminal: only words wrap; columns that do not fit are dropped, or follow in a table below."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from llmviewer.core.frozen import frozen
from llmviewer.reports.page import Align, Bar, Emphasis, Facts, Page, Part, Table, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

#: Width without a terminal: enough for all columns that explain a time.
WIDTH_WITHOUT_TERMINAL = 120
WIDTH_OF_FILES = 200


@frozen
class Screen:
    """Number of text columns, and whether colours are used."""

    width: int
    colour: bool

    @classmethod
    def plain(cls) -> Screen:
        """Returns the screen of a text without colours."""
        return cls(width=_width(), colour=False)

    @classmethod
    def from_stream(cls, stream: IO[str]) -> Screen:
        """Returns the screen of a stream; its width is COLUMNS, or that of a standard stream that is a terminal.

        Colours are used only on a terminal, and not if NO_COLOR is set (https://no-color.org) or TERM is dumb.
        """
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(width=_width(), colour=stream.isatty() and wanted)


#: Screen of a file, in which tables keep every column.
FILE = Screen(width=WIDTH_OF_FILES, colour=False)


def _width() -> int:
    if os.environ.get("COLUMNS", "").isdigit():
        return max(shutil.get_terminal_size().columns, 20)
    for descriptor in (1, 2, 0):
        try:
            columns = os.get_terminal_size(descriptor).columns
        except (OSError, ValueError):
            continue
        if columns:
            return max(columns, 20)
    return WIDTH_WITHOUT_TERMINAL


#: Maximum width of sentences and bars, for legibility.
MAX_TEXT_WIDTH = 120
GAP = 2
#: Least width of a column whose words wrap.
LEAST_WRAPPED = 24
#: Width of the console: what is wider than the screen is never cut, because numbers would be.
UNCUT = 10_000
STYLES = {
    Emphasis.PLAIN: "",
    Emphasis.GROUP: "bold",
    Emphasis.WARNING: "bold yellow",
    Emphasis.FAINT: "dim",
}


def text(page: Page, screen: Screen) -> str:
    """Returns the page as text without trailing blanks."""
    import io

    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=UNCUT,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        no_color=False,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for index, part in enumerate(page):
        if index and not isinstance(page[index - 1], Bar):
            console.print()
        _show(part, page, console, screen.width)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _show(part: Part, page: Page, console: Console, screen: int) -> None:
    width = min(screen, MAX_TEXT_WIDTH)
    if part.title:
        console.print(_styled(part.title, "bold"), width=width)
    if isinstance(part, Bar):
        for line in bar_lines(part, width):
            console.print(line, no_wrap=True, crop=False)
    elif isinstance(part, Facts):
        for line in fact_lines(part, width):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
    else:
        _show_table(part, page, console, screen)


def _show_table(table: Table, page: Page, console: Console, screen: int) -> None:
    """Prints a table; tables with the same columns drop the same ones and share their widths."""
    if table.note:
        console.print(_styled(table.note, "dim"), width=min(screen, MAX_TEXT_WIDTH))
    alike = [other for other in page if isinstance(other, Table) and other.columns == table.columns]
    widths = narrowed(table, column_widths(alike), screen)
    for index, shown in enumerate(fitted(table, widths, screen)):
        if index:
            console.print()
        console.print(_table(only(table, shown), [widths[i] for i in shown]))


def _styled(words: str, style: str) -> Text:
    from rich.text import Text

    return Text(plain(words), style=style)


def fact_lines(facts: Facts, width: int) -> list[Text]:
    """Returns aligned lines with wrapped sentences; URLs are not broken, so that they can be clicked and copied."""
    from textwrap import wrap

    from rich.cells import cell_len

    style = STYLES[facts.emphasis]
    cells = [tuple(map(plain, line)) for line in facts.lines]
    widths = [max(cell_len(line[index]) for line in cells) for index in range(len(cells[0]) - 1)]
    indent = sum(widths) + GAP * len(widths)
    lines: list[Text] = []
    for *heads, sentence in cells:
        room = max(width - indent, 20)
        pieces = wrap(sentence, room, break_long_words=False, break_on_hyphens=False) or [""]
        head = _styled("", "")
        for index, (label, label_width) in enumerate(zip(heads, widths, strict=True)):
            padding = " " * (label_width + GAP - cell_len(label))
            head.append(label + padding, style=style or ("" if index else "bold"))
        lines.append(head.append(pieces[0], style=style))
        lines += [_styled(" " * indent + piece, style) for piece in pieces[1:]]
    return lines


def _table(table: Table, widths: list[int]) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(
        box=box.SIMPLE,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
        show_header=any(column.title for column in table.columns),
        show_footer=bool(table.total),
        header_style="bold",
        footer_style="bold",
    )
    for index, column in enumerate(table.columns):
        grid.add_column(
            plain(column.title),
            _styled(table.total[index], "bold") if table.total else "",
            justify="left" if column.align is Align.LEFT else "right",
            width=widths[index],
            no_wrap=not column.wraps,
        )
    for row in table.rows:
        cells = zip(row.cells, table.columns, strict=True)
        style = STYLES[row.emphasis]
        styled = (_styled(cell, f"{style} {column.styles.get(cell, '')}".strip()) for cell, column in cells)
        grid.add_row(*styled, end_section=row.closes)
    return grid


def column_widths(tables: list[Table]) -> list[int]:
    """Returns the width of each column over tables with the same columns, without truncation."""
    from rich.cells import cell_len

    columns = range(len(tables[0].columns))
    rows = [row for t in tables for row in (*(r.cells for r in t.rows), tuple(c.title for c in t.columns), t.total)]
    return [max(cell_len(row[index]) for row in rows if row) for index in columns]


def narrowed(table: Table, widths: list[int], screen: int) -> list[int]:
    """Returns the widths with those of columns that wrap as narrow as columns of rank 0 need to fit on the screen."""
    essential = [index for index, column in enumerate(table.columns) if not column.rank]
    widths = list(widths)
    for index in essential:
        if table.columns[index].wraps:
            excess = max(_total_width(essential, widths) - screen, 0)
            widths[index] = max(widths[index] - excess, min(widths[index], LEAST_WRAPPED))
    return widths


def fitted(table: Table, widths: list[int], width: int) -> list[list[int]]:
    """Returns the columns to show within `width`: the highest ranks are dropped, or the table is split into several."""
    shown = list(range(len(table.columns)))
    while _total_width(shown, widths) > width:
        rank = max(table.columns[index].rank for index in shown)
        if not rank:
            return _split(shown, table.keep, widths, width)
        shown = [index for index in shown if table.columns[index].rank < rank]
    return [shown]


def _total_width(shown: list[int], widths: list[int]) -> int:
    return sum(widths[index] + GAP for index in shown) - GAP


def _split(shown: list[int], keep: int, widths: list[int], width: int) -> list[list[int]]:
    """Returns groups of as many columns as fit, repeating the first `keep` in each."""
    labels, groups = shown[:keep], [shown[:keep]]
    for index in shown[keep:]:
        if len(groups[-1]) > keep and _total_width([*groups[-1], index], widths) > width:
            groups.append(list(labels))
        groups[-1].append(index)
    return groups


def only(table: Table, shown: list[int]) -> Table:
    """Returns the table with only the columns of these indices."""
    return replace(
        table,
        columns=tuple(table.columns[i] for i in shown),
        rows=tuple(replace(row, cells=tuple(row.cells[i] for i in shown)) for row in table.rows),
        total=tuple(table.total[i] for i in shown) if table.total else (),
    )


def bar_lines(bar: Bar, width: int) -> tuple[Text, ...]:
    """Returns the bar and the line below it with its mark; a nonzero segment takes at least one character."""
    from rich.text import Text

    line = Text()
    cells = _cells(bar, width)
    for segment, count in zip(bar.segments, cells, strict=True):
        line.append(segment.glyph * count, style=segment.style)
    line.append("·" * (width - sum(cells)), style="dim")
    at = min(round(width * bar.mark / bar.scale), width - 1)
    before = f"{bar.mark_label} ▲"
    under = " " * (at - len(before) + 1) + before if at + 1 >= len(before) else " " * at + f"▲ {bar.mark_label}"
    return line, Text(under)


def _cells(bar: Bar, width: int) -> list[int]:
    """Returns the length of each segment; an excess from rounding is taken from the longest."""
    cells = [max(round(width * part.value / bar.scale), 1) if part.value > 0 else 0 for part in bar.segments]
    while sum(cells) > width:
        cells[cells.index(max(cells))] -= 1
    return cells
