"""Operators: a table to sort and filter, with a download of what it shows."""

from __future__ import annotations

from typing import Any

from llmviewer.reports.html.operators import HEADS, Line
from llmviewer.reports.web.markup import Piece, block, piece
from llmviewer.reports.web.view import View

GRID = "operators"
NOTE = "One row per operator, stage and kind of layer; a click shows its figures in the network."
#: Columns that the table begins with, which stay in sight; the configuration is the same for all rows.
PINNED = ("Operator",)
LEFT_OUT = ("Configuration",)


def content(view: View) -> list[Piece]:
    """The table of all operators of both stages."""
    heads = [(at, head) for at, head in enumerate(HEADS) if head.title not in LEFT_OUT]
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
    return [block(above, "above"), {"grid": grid}]


def _row(line: Line, columns: list[int]) -> dict[str, Any]:
    """Values of a row, by which it is sorted, and the texts of its numbers."""
    row: dict[str, Any] = {"key": line.key, "block": line.operator["block"]}
    for at in columns:
        cell = line.cells[at]
        row[f"c{at}"] = cell.text if cell.value is None else cell.value
        if cell.value is not None:
            row[f"t{at}"] = cell.text
    return row
