"""Reading tables of measurements: CSV or Parquet, in size what memory holds many times over."""

from __future__ import annotations

from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from llmviewer.core import files
from llmviewer.core.errors import UserError, printable
from llmviewer.result.columns import parquet_library

if TYPE_CHECKING:
    import pandas as pd

#: Limits of a file.  Cells are rows x columns; text takes up to a hundred bytes each in memory.
MAX_TABLE_BYTES, MAX_ROWS, MAX_COLUMNS, MAX_CELLS = 2**28, 250_000, 1000, 10**7
#: The names of the columns stand within the first bytes of a CSV.
MAX_HEADER_BYTES = 2**20
#: Bytes of a Parquet file's columns before compression.
MAX_UNPACKED_BYTES = 2**30
NOT_A_TABLE = "split it into several tables"


def read(path: Path) -> pd.DataFrame:
    """All rows of a CSV or Parquet file, numbered from 0.  Raises UserError with the reason in one line."""
    if not path.exists():
        raise UserError(f"no file '{printable(path)}'")
    with files.open_bounded(path, MAX_TABLE_BYTES, NOT_A_TABLE) as stream:
        try:
            frame = _parquet(stream) if path.suffix == ".parquet" else _csv(stream)
        except UserError as error:
            raise UserError(f"'{printable(path)}' {error.marked}") from error
        except Exception as error:
            reason = printable(str(error).partition("\n")[0], 160)
            raise UserError(f"cannot read '{printable(path)}' as a table: {reason}") from error
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise UserError(f"'{printable(path)}' has several columns '{printable(repeated[0])}'")
    return frame


def _csv(stream: BufferedReader) -> pd.DataFrame:
    import pandas as pd

    start = stream.read(MAX_HEADER_BYTES)
    if b"\n" not in start and len(start) == MAX_HEADER_BYTES:
        raise UserError(f"has a first line of more than {MAX_HEADER_BYTES // 2**10:,} KiB; expected names of columns")
    most = _most_rows(len(pd.read_csv(BytesIO(start), nrows=0).columns))
    stream.seek(0)
    frame = pd.read_csv(stream, nrows=most + 1, low_memory=False)
    _check_rows(len(frame), most)
    return frame.reset_index(drop=True)  # a row longer than the header makes its first cell an index


def _parquet(stream: BufferedReader) -> pd.DataFrame:
    """Columns as stored: an index that pandas wrote is a column like others."""
    stored = parquet_library().ParquetFile(stream)
    import pyarrow as pa

    facts = stored.metadata
    _check_rows(facts.num_rows, _most_rows(facts.num_columns))
    unpacked = sum(facts.row_group(at).total_byte_size for at in range(facts.num_row_groups))
    if unpacked > MAX_UNPACKED_BYTES:
        raise UserError(f"unpacks to more than {MAX_UNPACKED_BYTES // 2**20:,} MiB; {NOT_A_TABLE}")
    table = stored.read()
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_nested(kind) and name in frame and not frame.columns.duplicated().any():
            frame[name] = frame[name].map(str)  # no column of ours holds lists
    return frame


def _most_rows(columns: int) -> int:
    if columns > MAX_COLUMNS:
        raise UserError(f"has {columns:,} columns; allowed: at most {MAX_COLUMNS:,}")
    return min(MAX_ROWS, MAX_CELLS // max(columns, 1))


def _check_rows(count: int, most: int) -> None:
    if count > most:
        raise UserError(f"has more than {most:,} rows; {NOT_A_TABLE}")
