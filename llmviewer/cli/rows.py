"""Writers of sweep rows that arrive in chunks of columns; only one chunk is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from llmviewer.cli.views import atomic_file, open_output
from llmviewer.core.errors import UserError
from llmviewer.result.columns import arrow_table, constant, json_parts, parquet_library

Columns = dict[str, Any]

#: Characters for which a CSV cell is quoted.
SPECIAL = set(',"\r\n')
#: A terminal shows at most this many points; files contain all.
MAX_TERMINAL_ROWS = 200


def csv(chunks: Iterator[Columns], path: str | None) -> None:
    """Write comma-separated values with a header; undefined values are empty cells."""
    from llmviewer.reports.tables import safe_cell

    lines = _arrow_lines if find_spec("pyarrow") else _plain_lines
    with open_output(path) as stream:
        for number, columns in enumerate(chunks):
            if number == 0:
                stream.write(",".join(map(safe_cell, columns)) + "\n")
            words = {
                name: np.where(values, "True", "False") for name, values in columns.items() if values.dtype == bool
            }
            special = any(set(text) & SPECIAL for text in map(constant, columns.values()) if text)
            stream.write(lines(columns | words, quotes=special))


def _arrow_lines(columns: Columns, *, quotes: bool) -> str:
    """The lines of a chunk, by Arrow.  quotes: around every text."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    from llmviewer.reports.tables import safe_cell

    options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed" if quotes else "none")
    sink = pa.BufferOutputStream()
    arrow_csv.write_csv(arrow_table(columns, safe_cell), sink, options)
    return str(sink.getvalue(), "utf-8")


def _plain_lines(columns: Columns, *, quotes: bool) -> str:
    """Lines as `_arrow_lines` writes them, in several times the time."""
    cells = [_plain_cells(values, quotes=quotes) for values in columns.values()]
    return "".join(",".join(row) + "\n" for row in zip(*cells, strict=True))


def _plain_cells(values: Any, *, quotes: bool) -> list[str]:
    from llmviewer.reports.tables import safe_cell

    if values.dtype.kind == "f":
        return [_plain_number(value) for value in values.tolist()]
    if values.dtype.kind in "iu":
        return [str(value) for value in values.tolist()]
    texts = [safe_cell(str(values[0]))] * len(values) if values.dtype == object else values.tolist()
    return ['"' + text.replace('"', '""') + '"' for text in texts] if quotes else texts


def _plain_number(value: float) -> str:
    """The shortest text that is read as the same number, with an exponent where Arrow writes one."""
    if np.isnan(value):
        return ""
    if value == 0.0 or 1e-6 <= abs(value) < 1e10:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=1)


def json(chunks: Iterator[Columns], path: str | None) -> None:
    """Write `{"schema", "rows": [...]}`, one row per line; undefined values are null."""
    with open_output(path) as stream:
        stream.writelines(json_parts(chunks))


def parquet(chunks: Iterator[Columns], path: str | None) -> None:
    """Write one Parquet file."""
    if path is None:
        raise UserError("--format parquet needs a file: -o sweep.parquet")
    pq = parquet_library()
    with atomic_file(path) as temporary:
        writer = None
        for columns in chunks:
            table = arrow_table(columns)
            writer = writer or pq.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def table(chunks: Iterator[Columns], path: str | None) -> None:
    """Print a table of the first rows and the number of further rows."""
    from llmviewer.reports import sweep_page, terminal

    shown: list[Columns] = []
    varied: set[str] = set()
    points = 0
    for columns in chunks:
        start = shown[0] if shown else columns
        varied.update(name for name in columns.keys() - varied if np.any(columns[name] != start[name][0]))
        if points < MAX_TERMINAL_ROWS:
            shown.append(columns)
        points += len(columns["batch_size"])
    first = {name: [value for columns in shown for value in columns[name]][:MAX_TERMINAL_ROWS] for name in shown[0]}
    with open_output(path) as stream:
        page = sweep_page.page(first, max(points - MAX_TERMINAL_ROWS, 0), varied)
        stream.write(terminal.text(page, terminal.FILE if path is not None else terminal.Screen.from_stream(stream)))
