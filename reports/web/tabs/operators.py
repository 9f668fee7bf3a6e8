"""Operators: a table to sort and filter with the columns that are chosen, and sums of the rows that it shows."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any

from llmviewer.core.errors import unknown
from llmviewer.reports import format as fmt
from llmviewer.reports.html.operators import HEADS, ColumnHead, Line
from llmviewer.reports.page import Emphasis, Row, Table, left, right
from llmviewer.reports.stage_table import MOVED, moved, sum_over_layers
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.network import SERIAL
from llmviewer.reports.web.view import View

GRID = "operators"
NOTE = "One row per operator, stage and kind of layer; a click shows its figures in the network."
#: By what the sums of a stage are split, with labels -> title of the column.
SUMS = {"": "stage", "layer": "stage and layer", "bound": "stage and bound", "kind": "stage and kind"}
SUMS_TITLE = "Sums of the rows that the table shows, of all their layers"
#: Columns that the table begins with, which stay in sight; the configuration is the same for all rows.
PINNED = ("Operator",)
LEFT_OUT = ("Configuration",)


def content(view: View) -> list[Piece]:
    """The table of all operators of both stages, with the columns of the address.  Raises UserError."""
    heads, named = _chosen(view), _by_name()
    columns = [
        {
            "field": f"c{at}",
            "headerName": head.title,
            "headerTooltip": head.note or head.title,
            "filter": "agNumberColumnFilter" if head.number else "agTextColumnFilter",
            "type": "rightAligned" if head.number else None,
            "pinned": "left" if head.title in PINNED else None,
            **({"valueFormatter": {"function": f"params.data.t{at}"}} if head.number else {}),
        }
        for at, head in heads
    ]
    grid = {
        "id": GRID,
        "columnDefs": sorted(columns, key=lambda one: one["pinned"] is None),
        "rowData": [_row(line, [at for at, _ in heads]) for line in view.lines],
        "defaultColDef": {"sortable": True, "resizable": True, "filter": True, "minWidth": 90},
        "columnSize": "autoSize",
        "dashGridOptions": {
            "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
            "animateRows": False,
            "tooltipShowDelay": 300,
        },
        "getRowId": "params.data.key",
        "className": "ag-theme-quartz",
        "style": {"height": "70vh"},
    }
    above = piece("note", NOTE) + piece("download", "operators.csv", "Download as CSV", view.state.query())
    shown = [head for _, head in heads]
    listed = [
        (name, head.title, head.note, head in shown) for name, (_, head) in named.items() if head.title not in PINNED
    ]
    switch = {"name": "sums", "label": "Sums by", "value": _split(view), "choices": SUMS}
    choice = piece("columns", listed) + piece("switches", [switch])
    return [block(above, "above"), block(choice, "above"), {"grid": grid}]


def _by_name() -> dict[str, tuple[int, ColumnHead]]:
    """Name in the address -> place and head of a column."""
    return {
        re.sub(r"[^a-z0-9]+", "_", head.title.lower()): (at, head)
        for at, head in enumerate(HEADS)
        if head.title not in LEFT_OUT
    }


def _chosen(view: View) -> list[tuple[int, ColumnHead]]:
    """Places and heads of the columns that are shown: all unless the address has some.  Raises UserError."""
    named, wanted = _by_name(), [name for name in view.state.shown["columns"].split(",") if name]
    for name in wanted:
        if name not in named:
            raise unknown("column", name, named, where="the address")
    return [one for name, one in named.items() if not wanted or name in wanted or one[1].title in PINNED]


def _split(view: View) -> str:
    """By what the sums of a stage are split.  Raises UserError."""
    if (name := view.state.shown["sums"]) not in SUMS:
        raise unknown("sum", name, [one for one in SUMS if one], where="the address")
    return name


def sums(view: View, keys: Container[str]) -> str:
    """HTML of the sums of some rows by stage, and in it by what the address says.  Raises UserError."""
    by = _split(view)
    lines = [line for line in view.lines if line.key in keys]
    if not lines:
        return ""
    overlaps = any(any(stage["overlap_s"].values()) for stage in view.answer["stages"].values())
    titles = ("All layers", "Share", "FLOP", *(what[0].upper() + what[1:] for what in MOVED))
    table = Table(
        title=SUMS_TITLE,
        note=SERIAL if overlaps else "",
        columns=(left("Rows"), right("Operators"), *map(right, titles)),
        rows=tuple(_sums(lines, by)),
    )
    return page((table,))


def _sums(lines: Sequence[Line], by: str) -> Iterator[Row]:
    """A row per stage, each followed by those of its parts, the longest first."""
    at = next((at for at, head in enumerate(HEADS) if head.title.lower() == by), 0)
    for stage in dict.fromkeys(line.stage for line in lines):
        own, parts = [line for line in lines if line.stage == stage], dict[str, list[Line]]()
        for line in own if by else ():
            parts.setdefault(line.cells[at].text, []).append(line)
        yield _sum(stage, own, Emphasis.GROUP if by else Emphasis.PLAIN)
        yield from (_sum(name, parts[name]) for name in sorted(parts, key=lambda one: -_share(parts[one])))


def _share(lines: Sequence[Line]) -> float:
    return sum(line.share for line in lines)


def _sum(name: str, lines: Sequence[Line], emphasis: Emphasis = Emphasis.PLAIN) -> Row:
    one = {"operators": [line.operator for line in lines]}
    amounts = (fmt.traffic(amount) if amount else "" for amount in moved(one).values())
    times = fmt.duration(sum_over_layers(one, "time_s")), fmt.share(_share(lines))
    counts = f"{len(lines)}", *times, fmt.count(sum_over_layers(one, "flops"))
    return Row(cells=(name, *counts, *amounts), emphasis=emphasis)


def _row(line: Line, columns: list[int]) -> dict[str, Any]:
    """Values of a row, by which it is sorted, and the texts of its numbers."""
    row: dict[str, Any] = {"key": line.key, "block": line.operator["block"]}
    for at in columns:
        cell = line.cells[at]
        row[f"c{at}"] = cell.text if cell.value is None else cell.value
        if cell.value is not None:
            row[f"t{at}"] = cell.text
    return row
