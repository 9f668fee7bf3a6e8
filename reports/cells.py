"""Rows and text cells of CSV files, whose names come from files of others: a spreadsheet runs cells like formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
