"""Rows of measured tables that can be used: a missing or absurd cell drops its row with a reason, never the table."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.tables import TABLES, with_default_columns

if TYPE_CHECKING:
    import pandas as pd

#: Bounds of valid sizes: larger ones are taken as input errors; fewer devices exchange nothing.
MAX_SIZE, MAX_BYTES, MIN_GPUS = 1e9, 1e15, 2.0
#: Size columns that may be 0; all others are positive.
MAY_BE_ZERO = ("window", "prefix")
#: Columns with numbers by table, besides latency_us.
NUMBERS: dict[str, tuple[str, ...]] = {
    **{name: table.numbers for name, table in TABLES.items()},
    "copy": ("moved_bytes",),
    "host": ("moved_bytes",),
    "serving": ("tokens", "width"),
    "block": ("batch",),
    "model": ("batch",),
}
#: Columns with numbers that a row may leave empty.
OPTIONAL_NUMBERS = ("active", "converts", "experts", "group", "rotated_bytes", "v_head_dim")
#: Columns without which a row of a table says nothing.
NEEDED: dict[str, tuple[str, ...]] = {
    **{name: table.needed for name, table in TABLES.items()},
    "copy": ("op",),
    "host": ("op", "pinned"),
    "serving": ("op",),
    "launch": ("op", "graph"),
    "block": ("engine", "model", "dtype", "graph", "stage", "config"),
    "model": ("engine", "model", "dtype", "graph", "stage", "config"),
}
#: Columns of text, whose empty cells are "".
TEXTS = ("device", "source", "engine", "dtype", "kv_dtype", "kernel", "op", "impl", "link", "model", "stage", "phase")


def usable_rows(frame: pd.DataFrame, table: str) -> tuple[pd.DataFrame, pd.Series[str]]:
    """The rows that can be used, with numbers and text in their columns, and the reason of each other row.

    frame: rows of a kernel table or another one of `calibrate run`, with any values.
    """
    import pandas as pd

    reasons = pd.Series("", index=frame.index, dtype=object)
    clean = with_default_columns(frame.copy()) if table in TABLES else frame.copy()
    for name in ("device", *NEEDED.get(table, ())):
        missing = clean[name].isna() | (clean[name].astype(str) == "") if name in clean.columns else True
        _mark(reasons, missing, f"{name} is missing")
    for name in {*clean.columns} & {*TEXTS}:
        clean[name] = clean[name].where(clean[name].notna(), "").astype(str)
    for name in ("latency_us", *NUMBERS.get(table, ())):
        clean[name] = _numbers(clean[name]) if name in clean.columns else np.nan
        _mark(reasons, clean[name].isna(), f"{name} is missing or no number")
        _mark(reasons, ~_allowed(name, clean[name]), f"{name} is out of range; allowed: {_bounds(name)}")
    for name in {*clean.columns} & {*OPTIONAL_NUMBERS}:
        empty = clean[name].isna()
        clean[name] = _numbers(clean[name])
        _mark(
            reasons,
            ~empty & ~_allowed(name, clean[name]),
            f"{name} is out of range; allowed: {_bounds(name)}",
        )
    for name in {*clean.columns} & {"seq", "context"}:
        clean[name] = _numbers(clean[name])
    for condition, why in _contradictions(clean, table):
        _mark(reasons, condition, why)
    return _with_whole_sizes(clean[reasons == ""], table), reasons[reasons != ""]


def _with_whole_sizes(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """Rows whose sizes are integers again where an unusable cell had made them fractions or text.

    The fold of a shape in cross-validation is a hash of its sizes as they are written.
    """
    fractions = [name for name in NUMBERS.get(table, ()) if rows[name].dtype.kind == "f"]
    return rows.astype({name: np.int64 for name in fractions if (rows[name] % 1.0 == 0.0).all()})


def counted(reasons: pd.Series[str]) -> Counter[str]:
    """Number of rows of every reason."""
    return Counter({str(reason): int(rows) for reason, rows in reasons.value_counts().items()})


def _contradictions(clean: pd.DataFrame, table: str) -> list[tuple[Any, str]]:
    """(mask, reason) of cells that are wrong only together."""
    import pandas as pd

    found = TABLES[table].contradictions(clean) if table in TABLES else []
    if "graph" in NEEDED.get(table, ()) and "graph" in clean.columns:
        found.append((~clean["graph"].map(lambda value: isinstance(value, (bool, np.bool_))), "graph is no boolean"))
    if table in ("block", "model") and "stage" in clean.columns:
        is_prefill = clean["stage"] == "prefill"
        seq, context = (clean.get(name, pd.Series(np.nan, index=clean.index)) for name in ("seq", "context"))
        length = seq.where(is_prefill, context)
        found.append((~is_prefill & (clean["stage"] != "decode"), "stage is neither prefill nor decode"))
        found.append((~_allowed("seq", length), f"seq or context is missing; allowed: {_bounds('seq')}"))
    return found


def _mark(reasons: pd.Series[str], condition: Any, why: str) -> None:
    """Give rows their first reason."""
    reasons[condition & (reasons == "")] = why


def _numbers(column: pd.Series[Any]) -> pd.Series[float]:
    """The numbers in a column; NaN for other values."""
    return column if column.dtype.kind in "iuf" else column.map(_number).astype(np.float64)


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _allowed(name: str, values: pd.Series[float]) -> pd.Series[bool]:
    """Mask of the valid values of a column."""
    low = MIN_GPUS if name == "gpus" else 0.0
    return (values >= low) & ((values > 0.0) | (name in MAY_BE_ZERO)) & (values <= _most(name))


def _most(name: str) -> float:
    return MAX_BYTES if name in ("bytes", "latency_us", "moved_bytes", "rotated_bytes") else MAX_SIZE


def _bounds(name: str) -> str:
    """Description of the valid values of a column."""
    if name == "gpus":
        return "2 or more"
    return f"{'numbers from 0' if name in MAY_BE_ZERO else 'positive numbers'} up to {_most(name):g}"
