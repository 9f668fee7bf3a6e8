"""The samples file: JSON lines, one row a kernel and shape, on disk before the next one is measured.

DIR/samples.jsonl: the first line names the schema and the environment, every further one is a row of a table.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate.environment import difference
from llmviewer.core import parsing
from llmviewer.core.errors import UserError, quoted, shown, unknown

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.samples/1"
FILE = "samples.jsonl"
#: How a file of any version of the schema begins.
HEADER = b'{"schema": "llmviewer.samples/'
#: Tables that a row may belong to.
TABLES = (
    "gemm",
    "attention_prefill",
    "attention_decode",
    "elementwise",
    "allreduce",
    "copy",
    "launch",
    "block",
    "model",
)
#: Fields that a measurement adds; the others say what was measured.
RESULTS = (
    "latency_us",
    "samples_us",
    "spread",
    "stable",
    "clock_mhz",
    "power_w",
    "calls",
    "timed",
    "settled_s",
    "rotated_bytes",
    "skipped",
)
#: A line is a few kilobytes; a far larger one is no row.
MOST_BYTES_OF_A_LINE = 2**20

Row = Mapping[str, Any]


def key(row: Row) -> str:
    """What a row measures, as one word to compare by."""
    return json.dumps({name: value for name, value in row.items() if name not in RESULTS}, sort_keys=True)


class Recorder:
    """A samples file that is being written.  done: keys of the rows it holds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.done: set[str] = set()
        self.repaired = False

    def start(self, environment: Row) -> None:
        """Write the first line; or go on in a file of the same environment, its cut last line removed."""
        self._forget_cut_header()
        if not self.path.exists() or self.path.stat().st_size == 0:
            self._write({"schema": SCHEMA, "environment": environment})
            return
        whole = _whole_lines(self.path)
        if not whole:
            raise UserError(f"'{shown(self.path)}' is not a samples file: its first line is cut off")
        rows = _rows(self.path, whole)
        differing = difference(environment, next(rows))
        if differing:
            said = f"'{shown(self.path)}' holds samples of another environment"
            raise UserError(f"{said} ({'; '.join(differing)}); choose another directory")
        self.done = {key(row) for row in rows}
        self.repaired = len(whole) < self.path.stat().st_size
        if self.repaired:
            os.truncate(self.path, len(whole))

    def _forget_cut_header(self) -> None:
        """Nothing is lost with a first line that was never finished."""
        if self.path.exists() and not _whole_lines(self.path):
            content = self.path.read_bytes()
            if HEADER.startswith(content[: len(HEADER)]):
                os.truncate(self.path, 0)

    def append(self, row: Row) -> None:
        """Put a row on the disk."""
        self._write(row)
        self.done.add(key(row))

    def _write(self, content: Row) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(content, allow_nan=False) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(f"cannot write '{shown(self.path)}': {error.strerror or error}") from error


def prepare(folder: str | Path) -> Path:
    """The directory to write to, made if need be and tried, before an hour is spent measuring."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with (path / FILE).open("ab"):
            pass
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write to '{shown(folder)}': {getattr(error, 'strerror', None) or error}") from error
    return path


def _warn(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


def read(path: str | Path, say: Callable[[str], None] = _warn) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """(environment, table -> rows measured) of a samples file or of the directory that holds it.

    A cut last line, as a killed run leaves it, is left out and said.  Skipped shapes are in no table.
    """
    import pandas as pd

    file = Path(path).expanduser()
    file = file / FILE if file.is_dir() else file
    whole = _whole_lines(file)
    if not whole:
        raise UserError(f"'{shown(file)}' is not a samples file: its first line is missing or cut off")
    if len(whole) < file.stat().st_size:
        say(
            f"'{shown(file)}' ends in a line that is cut off; it is left out (a further `calibrate run` mends the file)"
        )
    rows = _rows(file, whole)
    environment = next(rows)
    tables: dict[str, list[Row]] = {}
    for row in rows:
        if "skipped" not in row:
            tables.setdefault(row["table"], []).append({k: v for k, v in row.items() if k != "table"})
    return environment, {name: pd.DataFrame(found) for name, found in tables.items()}


def _whole_lines(path: Path) -> bytes:
    """The file without what stands after its last line's end."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read '{shown(path)}': {getattr(error, 'strerror', None) or error}") from error
    return content[: content.rfind(b"\n") + 1]


def _rows(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    """The environment, then every row, checked."""
    for number, line in enumerate(content.splitlines(), 1):
        where = f"'{shown(path)}' line {number}"
        parsed = _object(line, where)
        if number == 1:
            yield _environment(parsed, f"'{shown(path)}'")
        else:
            _check(parsed, where)
            yield parsed


def _object(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > MOST_BYTES_OF_A_LINE:
        raise UserError(f"{where} is longer than {MOST_BYTES_OF_A_LINE // 2**10:,} KiB; not a row of samples")
    try:
        parsed = parsing.from_json(line.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{where} cannot be read as JSON: {shown(error, 160)}") from error
    if not isinstance(parsed, dict):
        raise UserError(f"{where} holds {quoted(parsed)}; expected a mapping of fields")
    return parsed


def _environment(header: Row, where: str) -> dict[str, Any]:
    if "schema" not in header:
        raise UserError(f"{where} is not a samples file: its first line names no schema")
    if header["schema"] != SCHEMA:
        raise UserError(f"{where} has schema {quoted(header['schema'])}; expected '{SCHEMA}'")
    environment = header.get("environment")
    if not isinstance(environment, dict):
        raise UserError(f"{where}: environment is {quoted(environment)}; expected a mapping")
    return environment


def _check(row: Row, where: str) -> None:
    """A row of a known table, with positive times or a reason why there are none."""
    table = row.get("table")
    if table not in TABLES:
        raise unknown("table", table, TABLES, where=where)
    if "skipped" in row:
        return
    samples = row.get("samples_us", [])
    for name, value in (("latency_us", row.get("latency_us")), *(("samples_us", s) for s in _listed(samples, where))):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0.0:
            raise UserError(f"{where}: {name} is {quoted(value)}; expected a positive number of microseconds")


def _listed(samples: object, where: str) -> list[Any]:
    if not isinstance(samples, list):
        raise UserError(f"{where}: samples_us is {quoted(samples)}; expected a list")
    return samples
