"""Tables as an Excel file: one sheet each, units in the headings, text that is never a formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.reports.page import plain
from llmviewer.reports.units import heading

if TYPE_CHECKING:
    import pandas as pd

#: Widest column [characters], and the width of the others.
WIDEST = 60


def write(tables: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write the tables that have rows, as sheets of their names."""
    import pandas as pd

    with path.open("wb") as stream, pd.ExcelWriter(stream, engine="openpyxl") as writer:
        for name, rows in tables.items():
            if rows:
                frame = pd.DataFrame([{column: _cell(value) for column, value in row.items()} for row in rows])
                frame.columns = [heading(str(column)) for column in frame.columns]
                frame.to_excel(writer, sheet_name=name, index=False, freeze_panes=(1, 1))
                _dress(writer.sheets[name], _formulas(frame))


def _cell(value: Any) -> Any:
    """Text without control characters, which Excel refuses."""
    return plain(value) if isinstance(value, str) else value


def _formulas(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Where (row and column of the sheet) text begins with `=`."""
    found = []
    for number, column in enumerate(frame.columns, start=1):
        if not frame[column].map(lambda value: isinstance(value, str) and value.startswith("=")).any():
            continue
        values = frame[column].astype(str)
        found += [(at + 2, number) for at, value in enumerate(values) if value.startswith("=")]
    return found


def _dress(sheet: Any, formulas: Sequence[tuple[int, int]]) -> None:
    """Widths by the headings, a filter over them, and text that begins with `=` as text."""
    from openpyxl.utils import get_column_letter

    for at, cell in enumerate(sheet[1], start=1):
        sheet.column_dimensions[get_column_letter(at)].width = min(max(len(str(cell.value)) + 2, 12), WIDEST)
    sheet.auto_filter.ref = sheet.dimensions
    for row, column in formulas:
        sheet.cell(row=row, column=column).data_type = "s"
