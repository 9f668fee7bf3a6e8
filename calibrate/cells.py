"""Cells of tables: missing ones, text, and sizes that a run can have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmviewer.core.arguments import MAX_WHOLE_NUMBER
from llmviewer.core.errors import UserError


def is_missing(value: object) -> bool:
    """Whether a cell is empty."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A column as text; empty if the table does not have it or leaves it empty."""
    return "" if is_missing(row.get(name)) else str(row[name])


def size_of(row: Mapping[str, Any], key: str, default: float | None = None, *, whole: bool = False) -> float:
    """A size of a run; `default` for an empty cell.  Raises UserError for one that no run has.

    whole: the size has no mean, so it is a whole number.
    """
    value = row.get(key)
    if is_missing(value) and default is not None:
        return default
    size = number(key, value)
    if not (size == 0.0 or 1.0 <= size <= MAX_WHOLE_NUMBER) or (whole and size % 1.0):
        raise UserError(f"{key} is neither 0 nor a {'whole ' * whole}number from 1 to {MAX_WHOLE_NUMBER:,}")
    return size


def number(key: str, value: object) -> float:
    """The number in a cell.  Raises UserError, without the value, so that equal faults are counted together."""
    try:
        return float(str(value))
    except ValueError as error:
        raise UserError(f"{key} is not a number") from error
