"""Writers of tidy rows that arrive in chunks of columns; none holds more than one chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmviewer.cli.output import open_output, atomic_file
from llmviewer.core.errors import UserError

Columns = dict[str, Any]

#: A terminal shows at most this many points; files hold all.
MAX_TERMINAL_ROWS = 200


def csv(chunks: Iterator[Columns], path: str | None) -> None:
    """Comma-separated values with a header."""
    import pandas as pd

    with open_output(path) as stream:
        for number, columns in enumerate(chunks):
            pd.DataFrame(columns).to_csv(stream, index=False, header=number == 0)


def json(chunks: Iterator[Columns], path: str | None) -> None:
    """`{"schema", "rows": [...]}`, one row a line; what does not exist is null."""
    import pandas as pd

    with open_output(path) as stream:
        stream.write('{"schema": "llmviewer.sweep/1", "rows": [')
        between = "\n"
        for columns in chunks:
            lines = pd.DataFrame(columns).to_json(orient="records", lines=True, double_precision=15).strip()
            stream.write(between + lines.replace("\n", ",\n"))
            between = ",\n"
        stream.write("\n]}\n")


def parquet(chunks: Iterator[Columns], path: str | None) -> None:
    """One Parquet file."""
    if path is None:
        raise UserError("--format parquet needs a file: -o sweep.parquet")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError("Parquet needs pyarrow: pip install 'llmviewer[parquet]'") from error
    with atomic_file(path) as temporary:
        writer = None
        for columns in chunks:
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(temporary, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def table(chunks: Iterator[Columns], path: str | None) -> None:
    """The first rows for a person; says how many more there are."""
    from llmviewer.reports import screen, sweep_page, terminal

    kept: list[Columns] = []
    points = 0
    for columns in chunks:
        if points < MAX_TERMINAL_ROWS:
            kept.append(columns)
        points += len(columns["batch_size"])
    first = {name: [value for columns in kept for value in columns[name]][:MAX_TERMINAL_ROWS] for name in kept[0]}
    with open_output(path) as stream:
        page = sweep_page.page(first, max(points - MAX_TERMINAL_ROWS, 0))
        stream.write(terminal.text(page, screen.FILE if path is not None else screen.Screen.from_stream(stream)))
