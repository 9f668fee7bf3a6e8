"""What may be fitted and validated: directories of `calibrate run`, and measured tables of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import record
from llmviewer.calibrate.e2e import is_table as is_whole_requests
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.predict import check
from llmviewer.calibrate.tables import SHAPES, table_of
from llmviewer.core.errors import UserError, shown

if TYPE_CHECKING:
    import pandas as pd

#: Tables of whole layers and models, which are never fitted: predictions are held against them.
WHOLE = ("block", "model")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSource:
    """Tables of one file.  environment: what `calibrate run` says of the machine; empty of tables by others."""

    path: Path
    tables: Mapping[str, pd.DataFrame]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kernels(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Tables that formulas describe."""
        yield from ((name, frame) for name, frame in self.tables.items() if name in SHAPES)


def is_samples(path: Path) -> bool:
    """Whether a path means what `calibrate run` writes."""
    return path.is_dir() or path.suffix == ".jsonl"


def read(path: Path) -> TableSource:
    """A samples file or its directory, or a table in CSV or Parquet.  Raises UserError: one line why not."""
    if is_samples(path):
        environment, tables = record.read(path)
        for name, frame in tables.items():
            _complete(name, frame, path)
        return TableSource(path=path, tables=tables, environment=environment)
    frame = read_table(path)
    if is_whole_requests(frame.columns):
        raise UserError(
            f"'{shown(path)}' holds whole requests; `calibrate validate` takes them, nothing is fitted on them"
        )
    table = table_of(frame.columns)
    check(frame)
    return TableSource(path=path, tables={table: frame})


def _complete(name: str, frame: pd.DataFrame, path: Path) -> None:
    """Raise for rows without the columns that name their shape."""
    missing = [column for column in (*SHAPES.get(name, ()), "device") if column not in frame.columns]
    if missing:
        raise UserError(f"'{shown(path)}': rows of {name} without {', '.join(missing)}")
    if name in SHAPES:
        check(frame)


def read_all(paths: Sequence[Path]) -> list[TableSource]:
    """Every source, each once."""
    return [read(path) for path in dict.fromkeys(paths)]
