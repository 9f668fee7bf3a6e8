"""Read inputs of fit and validate: samples of `calibrate run`, and measured tables of other projects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import record
from llmviewer.calibrate.e2e import is_request_table
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.predict import check
from llmviewer.calibrate.readers.files import is_benchmark
from llmviewer.calibrate.tables import SHAPES, table_of
from llmviewer.core.errors import UserError, printable

if TYPE_CHECKING:
    import pandas as pd

#: Tables of whole layers and models: never fitted, only compared with predictions.
WHOLE_TABLES = ("block", "model")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSource:
    """Tables of one file.  environment: the machine of `calibrate run`; empty for tables of other projects."""

    path: Path
    tables: Mapping[str, pd.DataFrame]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The directory of the output of `calibrate run`."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def kernels(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """The kernel tables, which formulas describe."""
        yield from ((name, frame) for name, frame in self.tables.items() if name in SHAPES)


def is_samples(path: Path) -> bool:
    """Whether a path is output of `calibrate run`."""
    return path.is_dir() or path.suffix == ".jsonl"


def read(path: Path) -> TableSource:
    """Read a samples file, its directory, or a CSV or Parquet table.  Raises UserError with the reason."""
    if is_samples(path) and not is_benchmark(path):  # SGLang writes JSON lines too
        environment, tables = record.read(path)
        for name, frame in tables.items():
            _check_columns(name, frame, path)
        return TableSource(path=path, tables=tables, environment=environment)
    whole_requests = f"'{printable(path)}' contains whole requests, which are never fitted; use `calibrate validate`"
    if is_benchmark(path):
        raise UserError(whole_requests)
    frame = read_table(path)
    if is_request_table(frame.columns):
        raise UserError(whole_requests)
    table = table_of(frame.columns)
    check(frame)
    return TableSource(path=path, tables={table: frame})


def _check_columns(name: str, frame: pd.DataFrame, path: Path) -> None:
    """Raise UserError for rows without the columns of their shape."""
    missing = [column for column in (*SHAPES.get(name, ()), "device") if column not in frame.columns]
    if missing:
        raise UserError(f"'{printable(path)}': rows of {name} without {', '.join(missing)}")
    if name in SHAPES:
        check(frame)


def read_all(paths: Sequence[Path]) -> list[TableSource]:
    """Read every source; repeated paths once."""
    return [read(path) for path in dict.fromkeys(paths)]
