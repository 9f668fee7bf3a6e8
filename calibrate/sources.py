"""Read inputs of fit and validate: samples of `calibrate run`, and measured tables of other projects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import record
from llmviewer.calibrate.e2e import is_request_table
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.readers.files import is_benchmark
from llmviewer.calibrate.tables import TABLES, table_of
from llmviewer.calibrate.usable import counted, usable_rows
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    import pandas as pd

#: Tables of whole layers and models: never fitted, only compared with predictions.
WHOLE_TABLES = ("block", "model")


@frozen(eq=False)
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
        yield from ((name, frame) for name, frame in self.tables.items() if name in TABLES)


def is_samples(path: Path) -> bool:
    """Whether a path is output of `calibrate run`."""
    return path.is_dir() or path.suffix == ".jsonl"


def read(path: Path) -> TableSource:
    """Read a samples file, its directory, or a CSV or Parquet table.  Raises UserError with the reason."""
    if is_samples(path) and not is_benchmark(path):  # SGLang writes JSON lines too
        environment, tables = record.read(path)
        return TableSource(path=path, tables=tables, environment=environment)
    whole_requests = f"'{printable(path)}' contains whole requests, which are never fitted; use `calibrate validate`"
    if is_benchmark(path):
        raise UserError(whole_requests)
    frame = read_table(path)
    if is_request_table(frame.columns):
        raise UserError(whole_requests)
    return TableSource(path=path, tables={table_of(frame.columns): frame})


def read_usable(paths: Sequence[Path]) -> tuple[list[TableSource], Counter[str]]:
    """The rows of every source that can be used, and how many of the others there are by reason; repeated paths once.

    Raises UserError if no row is left.
    """
    sources, unusable = [], Counter[str]()
    for path in dict.fromkeys(paths):
        source, tables = read(path), {}
        for name, frame in source.tables.items():
            tables[name], reasons = usable_rows(frame, name)
            unusable += counted(reasons)
        sources.append(replace(source, tables={name: frame for name, frame in tables.items() if len(frame)}))
    if unusable and not any(source.tables for source in sources):
        why = "; ".join(f"{rows} rows: {reason}" for reason, rows in unusable.items())
        raise UserError(f"no row can be used: {why}")
    return sources, unusable
