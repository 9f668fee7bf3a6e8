"""Tables as an Excel file: one sheet each, units in headings, text never read as a formula."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.reports.format import heading
from llmviewer.reports.page import plain

if TYPE_CHECKING:
    import pandas as pd

#: Maximum column width [characters].
MAX_WIDTH = 60
#: Rows of a sheet below its heading; callers refuse longer tables.
MAX_ROWS = 2**20 - 1


def write(tables: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Writes every table that has rows to a sheet of its name.  Raises OSError if a disk is full."""
    import gc

    failure, told = None, sys.unraisablehook
    sys.unraisablehook = lambda _: None  # a writer that meets a full disk prints tracebacks when it is collected
    try:
        path.write_bytes(_workbook(tables))
    except OSError as error:
        failure = OSError(error.errno, error.strerror)
    finally:
        if failure:
            gc.collect()
        sys.unraisablehook = told
    if failure:
        raise failure


def _workbook(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    import pandas as pd

    content = io.BytesIO()
    with pd.ExcelWriter(content, engine="openpyxl") as writer:
        for name, rows in tables.items():
            if rows:
                frame = pd.DataFrame([{column: _cell(value) for column, value in row.items()} for row in rows])
                frame.columns = [heading(str(column)) for column in frame.columns]
                frame.to_excel(writer, sheet_name=name, index=False, freeze_panes=(1, 1))
                _format_sheet(writer.sheets[name], _formulas(frame))
    return content.getvalue()


def _cell(value: Any) -> Any:
    """Returns text without the control characters that Excel rejects."""
    return plain(value) if isinstance(value, str) else value


def _formulas(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Returns (row, column) in the sheet of each text that begins with `=`."""
    found = []
    for number, column in enumerate(frame.columns, start=1):
        if not frame[column].map(lambda value: isinstance(value, str) and value.startswith("=")).any():
            continue
        values = frame[column].astype(str)
        found += [(at + 2, number) for at, value in enumerate(values) if value.startswith("=")]
    return found


def _format_sheet(sheet: Any, formulas: Sequence[tuple[int, int]]) -> None:
    """Sets column widths, a filter on the headings, and the text type of cells that begin with `=`."""
    from openpyxl.utils import get_column_letter

    for at, cell in enumerate(sheet[1], start=1):
        sheet.column_dimensions[get_column_letter(at)].width = min(max(len(str(cell.value)) + 2, 12), MAX_WIDTH)
    sheet.auto_filter.ref = sheet.dimensions
    for row, column in formulas:
        sheet.cell(row=row, column=column).data_type = "s"
