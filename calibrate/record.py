"""The samples file: JSON lines, one per kernel and shape, each written to disk before the next is measured.

The first line of DIR/samples.jsonl contains schema and environment; every other line is a row of a table.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate.environment import identity_differences
from llmviewer.core import files, parsing
from llmviewer.core.errors import MAX_LINE_CHARACTERS, UserError, printable, told, unknown

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.samples/1"
FILE = "samples.jsonl"
#: First bytes of a file of any schema version.
HEADER = b'{"schema": "llmviewer.samples/'
#: Allowed values of a row's `table`.
TABLES = (
    "gemm",
    "attention_prefill",
    "attention_decode",
    "attention_encoder",
    "moe",
    "elementwise",
    "recurrence",
    "allreduce",
    "copy",
    "launch",
    "block",
    "model",
    "serving",
    "host",
)
#: Fields of the result; the others identify what was measured.
RESULT_FIELDS = (
    "latency_us",
    "samples_us",
    "spread",
    "stable",
    "clock_mhz",
    "power_w",
    "power_s",
    "calls",
    "timed",
    "settled_s",
    "rotated_bytes",
    "skipped",
)
#: A row takes a few kilobytes; longer lines are rejected.
MAX_LINE_BYTES = 2**20
#: A full run writes some ten megabytes.
MAX_FILE_BYTES = 2**28
NOT_SAMPLES = "not samples of `calibrate run`"

Row = Mapping[str, Any]


def row_key(row: Row) -> str:
    """Identity of a row: its fields other than results, as one string."""
    return json.dumps({name: value for name, value in row.items() if name not in RESULT_FIELDS}, sort_keys=True)


class Recorder:
    """Writer of a samples file, which it locks until `close`.  done: keys of the rows in it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.done: set[str] = set()
        self.repaired = False
        self._held = _locked(self.path)

    def close(self) -> None:
        """Release the file for other runs."""
        self._held.close()

    def start(self, environment: Row) -> None:
        """Write the header, or resume a file of the same environment, removing a truncated last line.

        Raises UserError for a file of another environment.
        """
        self._forget_cut_header()
        if not self.path.exists() or self.path.stat().st_size == 0:
            self._write({"schema": SCHEMA, "environment": environment})
            return
        complete = _complete_lines(self.path)
        if not complete:
            raise UserError(f"'{printable(self.path)}' is not a samples file: its first line is truncated")
        rows = _rows(self.path, complete)
        differing = identity_differences(environment, next(rows))
        if differing:
            message = f"'{printable(self.path)}' contains samples of another environment"
            raise UserError(f"{message} ({'; '.join(differing)}); choose another directory")
        self.done = {row_key(row) for row in rows}
        self.repaired = len(complete) < self.path.stat().st_size
        if self.repaired:
            os.truncate(self.path, len(complete))

    def _forget_cut_header(self) -> None:
        """Empty a file whose only line is a truncated header."""
        if self.path.exists() and not _complete_lines(self.path):
            content = files.content(self.path, MAX_FILE_BYTES, NOT_SAMPLES)
            if HEADER.startswith(content[: len(HEADER)]):
                os.truncate(self.path, 0)

    def append(self, row: Row) -> None:
        """Write a row to disk."""
        self._write(row)
        self.done.add(row_key(row))

    def _write(self, content: Row) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(content, allow_nan=False) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(f"cannot write '{printable(self.path)}': {error.strerror or error}") from error


def rows_kept(folder: Path) -> int:
    """Number of whole rows in the samples file of a directory."""
    file = folder / FILE
    return max(file.read_bytes().count(b"\n") - 1, 0) if file.is_file() else 0


def _locked(path: Path) -> BufferedWriter:
    """The file, locked until it is closed; a file system without locks gives it unlocked.

    Raises UserError if another process holds it: two runs would measure each row twice and disturb each other.
    """
    stream = path.open("ab")
    try:
        import fcntl

        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        stream.close()
        folder = printable(path.parent)
        raise UserError(f"another `calibrate run` writes to '{folder}'; wait for it, or give another folder") from error
    except (ImportError, OSError):  # Windows, some network file systems
        return stream
    return stream


def prepare_folder(folder: str | Path) -> Path:
    """Create the output directory and check that it is writable and free, before an hour of measuring."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / FILE).exists() and not (path / FILE).is_file():  # opening a pipe would wait for its reader
            raise UserError(f"'{printable(path / FILE)}' is not a file")
        _locked(path / FILE).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot write to '{printable(folder)}': {getattr(error, 'strerror', None) or error}"
        ) from error
    return path


def _warn(text: str) -> None:
    sys.stderr.write(f"warning: {printable(text, MAX_LINE_CHARACTERS)}\n")


def read(path: str | Path, warn: Callable[[str], None] = _warn) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Read a samples file, or the one in a directory: (environment, table -> measured rows).

    A truncated last line, as a killed run leaves it, is ignored with a warning.  Skipped shapes are in no table.
    """
    import pandas as pd

    file = Path(path).expanduser()
    file = file / FILE if file.is_dir() else file
    complete = _complete_lines(file)
    if not complete:
        raise UserError(f"'{printable(file)}' is not a samples file: its first line is missing or truncated")
    if len(complete) < file.stat().st_size:
        warn(f"'{printable(file)}' ends in a truncated line, which is ignored (the next `calibrate run` repairs it)")
    rows = _rows(file, complete)
    environment = next(rows)
    tables: dict[str, list[Row]] = {}
    for row in rows:
        if "skipped" not in row:
            tables.setdefault(row["table"], []).append({k: v for k, v in row.items() if k != "table"})
    return environment, {name: pd.DataFrame(found) for name, found in tables.items()}


def _complete_lines(path: Path) -> bytes:
    """Content of the file up to its last newline."""
    content = files.content(path, MAX_FILE_BYTES, NOT_SAMPLES)
    return content[: content.rfind(b"\n") + 1]


def _rows(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the environment, then every row, checked."""
    for number, line in enumerate(content.splitlines(), 1):
        where = f"'{printable(path)}' line {number}"
        parsed = _object(line, where)
        if number == 1:
            yield _environment(parsed, f"'{printable(path)}'")
        else:
            _check(parsed, where)
            yield parsed


def _object(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{where} is longer than {MAX_LINE_BYTES // 2**10:,} KiB; not a row of samples")
    try:
        parsed = parsing.from_json(line.decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{where} cannot be read as JSON: {printable(error, 160)}") from error
    if not isinstance(parsed, dict):
        raise UserError(f"{where} contains {told(parsed)}; expected a mapping of fields")
    return parsed


def _environment(header: Row, where: str) -> dict[str, Any]:
    if "schema" not in header:
        raise UserError(f"{where} is not a samples file: its first line names no schema")
    if header["schema"] != SCHEMA:
        raise UserError(f"{where} has schema {told(header['schema'])}; expected '{SCHEMA}'")
    environment = header.get("environment")
    if not isinstance(environment, dict):
        raise UserError(f"{where}: environment is {told(environment)}; expected a mapping")
    return environment


def _check(row: Row, where: str) -> None:
    """Raise unless the row is of a known table and has positive times or a skip reason."""
    table = row.get("table")
    if table not in TABLES:
        raise unknown("table", table, TABLES, where=where)
    if "skipped" in row:
        return
    samples = row.get("samples_us", [])
    for name, value in (
        ("latency_us", row.get("latency_us")),
        *(("samples_us", sample) for sample in _sample_list(samples, where)),
    ):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0.0:
            raise UserError(f"{where}: {name} is {told(value)}; expected a positive number of microseconds")


def _sample_list(samples: object, where: str) -> list[Any]:
    if not isinstance(samples, list):
        raise UserError(f"{where}: samples_us is {told(samples)}; expected a list")
    return samples
