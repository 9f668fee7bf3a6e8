"""A report as named tables for CSV and Excel, whose text cells are never read as formulas."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.reports.format import heading
from llmviewer.reports.page import plain
from llmviewer.reports.report import Report
from llmviewer.result.columns import flat

if TYPE_CHECKING:
    import pandas as pd

#: First characters of a formula (OWASP, CSV injection: https://owasp.org/www-community/attacks/CSV_Injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(value: Any) -> Any:
    """Text without control characters, with an apostrophe before a formula, so that it is shown; numbers unchanged."""
    if not isinstance(value, str) or (value.isprintable() and not value.startswith(FORMULA_STARTS)):
        return value
    is_formula = value.startswith(FORMULA_STARTS) and not _is_number(value)
    plain = "".join(character if character.isprintable() else "?" for character in value)
    return f"'{plain}" if is_formula else plain


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def safe_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with safe text in their names and lists; each distinct text is looked at once."""
    return {safe_cell(name): _safe_list(values) for name, values in columns.items()}


def safe_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with safe text in their names and cells."""
    texts = [name for name, kind in rows.dtypes.items() if kind.kind == "O"]
    return rows.assign(**{str(name): rows[name].map(safe_cell) for name in texts}).rename(columns=safe_cell)


def _safe_list(values: Any) -> Any:
    first = next((value for value in values if value is not None), None) if isinstance(values, list) else None
    if not isinstance(first, str):
        return values
    changed = {text: safe_cell(text) for text in set(values) if safe_cell(text) != text}
    return [changed.get(text, text) for text in values] if changed else values


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV: dotted names for nested fields, a column for each bound of an interval, spaces between list items,
    empty cells for undefined values."""
    flattened = [flat(row) for row in rows]
    buffer = io.StringIO()
    names = list(dict.fromkeys(name for row in flattened for name in row))
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(safe_cell, names))
    writer.writerows([safe_cell(row.get(name)) for name in names] for row in flattened)
    return buffer.getvalue()


Row: TypeAlias = dict[str, Any]


def summary(report: Report) -> list[Row]:
    """Returns the metrics of every configuration."""
    return [
        {
            "configuration": c["configuration"],
            "model": c["model"]["name"],
            "hardware": c["hardware"]["name"],
            "devices": c["parallelism"]["devices"],
            "dtype": c["dtype"],
            **c["techniques"],
            "efficiency": c["efficiency"]["kind"],
            "engine": c["efficiency"].get("engine"),
            **c["workload"],
            **c["metrics"],
            **{f"{name}_bound": stage["bound"] for name, stage in c["stages"].items()},
            "fits": c["memory"]["fits"],
        }
        for c in report.configurations
    ]


def operators(report: Report) -> list[Row]:
    """Returns the operators of both stages, with figures of one layer."""
    return [
        {"configuration": c["configuration"], "stage": name, **operator}
        for c in report.configurations
        for name, stage in c["stages"].items()
        for operator in stage["operators"]
    ]


def memory(report: Report) -> list[Row]:
    """Returns memory use and limits of one device."""
    return [{"configuration": c["configuration"], **c["memory"]} for c in report.configurations]


def sources(report: Report) -> list[Row]:
    """Returns every chip figure with its source."""
    chips = {c["hardware"]["name"]: c["provenance"]["figures"] for c in report.configurations}
    return [
        {"hardware": chip, "figure": name, "note": "", **figure}
        for chip, figures in chips.items()
        for name, figure in figures.items()
    ]


def assumptions(report: Report) -> list[Row]:
    """Returns the provenance of models and times, assumptions and warnings."""
    rows = []
    for c in report.configurations:
        provenance = c["provenance"]
        stated = [(key, provenance[key]) for key in ("llmviewer", "model", "hardware")]
        stated += [("times", provenance["times"]), *(("assumed", text) for text in provenance["assumed"])]
        stated += [("warning", text) for text in c["warnings"]]
        rows += [{"configuration": c["configuration"], "what": subject, "text": text} for subject, text in stated]
    return rows


#: Tables by name, in the order of sheets of an Excel file.
TABLES: dict[str, Callable[[Report], list[Row]]] = {
    "summary": summary,
    "points": Report.rows,
    "operators": operators,
    "memory": memory,
    "sources": sources,
    "assumptions": assumptions,
}


#: Maximum column width [characters].
MAX_WIDTH = 60
#: Rows of a sheet below its heading; callers refuse longer tables.
MAX_ROWS = 2**20 - 1


def write_excel(tables: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
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
