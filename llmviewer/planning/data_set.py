"""The partitioned Parquet data set of a campaign: one file per chunk, which appears whole or not at all."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable
from llmviewer.result.columns import arrow_table, constant

#: Readers of data sets skip names that begin with an underscore or a dot.
MANIFEST, UNFINISHED = "_campaign.json", ".part-"
SCHEMA = "llmviewer.campaign/1"
#: Columns that are names of folders, not columns of the files.
PARTITIONS = ("model", "hardware")
PART = re.compile(r"part-(\d{8})-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A folder with files `model=M/hardware=H/part-INDEX-KEY.parquet`; sorted by name, each partition is in order.

    key: of the campaign, in every name.  token: random text in the manifest, by which a worker on another machine knows
    whether it sees the folder itself.
    """

    folder: Path
    key: str
    token: str

    def path(self, index: int, columns: Mapping[str, Any]) -> Path:
        """The path of a chunk's file below the folder."""
        names = (f"{name}={quote(constant(columns[name]) or '', safe=' ')}" for name in PARTITIONS)
        return Path(*names, f"part-{index:08d}-{self.key[:16]}.parquet")

    def is_seen(self) -> bool:
        """Whether this process sees the folder that the campaign began in."""
        with suppress(OSError, UserError):
            return data.read_json(self.folder / MANIFEST).get("token") == self.token
        return False

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Create the folder and its manifest, unless it has one."""
        with _told(self.folder):
            self.folder.mkdir(exist_ok=True)
            if not (self.folder / MANIFEST).exists():
                text = json.dumps({**manifest, "token": self.token}, indent=1)
                _replace(self.folder / MANIFEST, text.encode())

    def store(self, path: Path, content: bytes) -> None:
        """Write the file of a chunk; a chunk that is computed twice replaces its own file."""
        with _told(self.folder):
            whole = self.folder / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            _replace(whole, content)

    def finished(self, rows: Sequence[int]) -> set[int]:
        """Positions of the chunks whose files are there.  rows: of each chunk; a damaged file does not count."""
        with _told(self.folder):
            parts = [(PART.fullmatch(path.name), path) for path in self.folder.glob("model=*/hardware=*/*.parquet")]
        known = [(int(found[1]), path) for found, path in parts if found and found[2] == self.key[:16]]
        return {index for index, path in known if index < len(rows) and _rows(path) == rows[index]}

    def clear(self) -> None:
        """Remove files that killed workers have left unfinished."""
        for path in self.folder.glob(f"**/{UNFINISHED}*"):
            with suppress(OSError):
                path.unlink()


def data_set(name: str, manifest: Mapping[str, Any]) -> DataSet:
    """The data set of a campaign in the folder called `name`, which may not exist yet; nothing is written.

    Raises UserError for a folder of something else.
    """
    with _told(name):
        folder = Path(name).expanduser().absolute()
        made = DataSet(folder=folder, key=manifest["key"], token=secrets.token_hex(16))
        if not folder.exists():
            if not folder.parent.is_dir():
                raise UserError(f"cannot write '{printable(name)}': the folder above it does not exist")
            return made
        if not folder.is_dir():
            raise UserError(f"'{printable(name)}' is a file; a campaign writes a folder")
        if not (folder / MANIFEST).exists():
            if any(not path.name.startswith(".") for path in folder.iterdir()):
                raise UserError(f"'{printable(name)}' has files that are of no campaign; choose another folder")
            return made
    known = data.read_json(folder / MANIFEST)
    if known.get("key") != manifest["key"]:
        raise UserError(f"'{printable(name)}' holds another campaign ({_difference(known, manifest)}); choose another")
    return DataSet(folder=folder, key=manifest["key"], token=str(known.get("token")))


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first way in which two manifests differ, in words."""
    if known.get("schema") != SCHEMA:
        return f"schema {known.get('schema')}"
    if known.get("kind") != wanted["kind"]:
        return f"of `{known.get('kind')}`"
    there, here = dict(known.get("asked") or {}), wanted["asked"]
    for name in (*here, *there):
        if there.get(name) != here.get(name):
            return (
                f"{name} {printable(there.get(name, 'not given'))} there, {printable(here.get(name, 'not given'))} here"
            )
    changed = [path for path, one in wanted["files"].items() if dict(known.get("files") or {}).get(path) != one]
    return f"'{changed[0]}' has changed" if changed else "of another version or other data of llmviewer"


def part(columns: Mapping[str, Any]) -> bytes:
    """The content of a chunk's file."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    table = arrow_table({name: values for name, values in columns.items() if name not in PARTITIONS})
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _rows(path: Path) -> int:
    """Rows of a Parquet file; -1 for one that is damaged."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return -1


def _replace(path: Path, content: bytes) -> None:
    """Write a file under another name first, so that it appears whole."""
    unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _told(name: str | Path) -> Iterator[None]:
    """Turn errors of the file system into one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write '{printable(name)}': {reason}") from error
