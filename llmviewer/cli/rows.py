"""Writers of sweep rows that arrive in chunks of columns; only one chunk is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmviewer.cli.output import atomic_file, open_output
from llmviewer.core.errors import UserError
from llmviewer.result.columns import arrow_table, constant, json_parts

Columns = dict[str, Any]

#: Characters for which a CSV cell is quoted.
SPECIAL = set(',"\r\n')
#: A terminal shows at most this many points; files contain all.
MAX_TERMINAL_ROWS = 200


def csv(chunks: Iterator[Columns], path: str | None) -> None:
    """Write comma-separated values with a header; undefined values are empty cells."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    from llmviewer.reports.cells import safe_cell

    with open_output(path) as stream:
        for number, columns in enumerate(chunks):
            if number == 0:
                stream.write(",".join(map(safe_cell, columns)) + "\n")
            words = {
                name: np.where(values, "True", "False") for name, values in columns.items() if values.dtype == bool
            }
            special = any(set(text) & SPECIAL for text in map(constant, columns.values()) if text)
            options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
            sink = pa.BufferOutputStream()
            arrow_csv.write_csv(arrow_table(columns | words, safe_cell), sink, options)
            stream.write(str(sink.getvalue(), "utf-8"))


def json(chunks: Iterator[Columns], path: str | None) -> None:
    """Write `{"schema", "rows": [...]}`, one row per line; undefined values are null."""
    with open_output(path) as stream:
        stream.writelines(json_parts(chunks))


def parquet(chunks: Iterator[Columns], path: str | None) -> None:
    """Write one Parquet file."""
    if path is None:
        raise UserError("--format parquet needs a file: -o sweep.parquet")
    from pyarrow import parquet as pq

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
    from llmviewer.reports import screen, sweep_page, terminal

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
        stream.write(terminal.text(page, screen.FILE if path is not None else screen.Screen.from_stream(stream)))
