"""The partitioned Parquet data set of a campaign: one file per chunk, which appears whole or not at all."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.result.columns import arrow_table, constant

#: Readers of data sets skip names that begin with an underscore or a dot.
MANIFEST, UNFINISHED = "_campaign.json", ".part-"
SCHEMA = "llmviewer.campaign/1"
#: Key in the metadata of a part.
PLACE = b"llmviewer.part"
#: Columns that are names of folders, not columns of the files.
PARTITIONS = ("model", "hardware")
PART = re.compile(r"part-(\d{8})-([0-9a-f]{16})\.parquet")


@frozen
class DataSet:
    """A folder with files `model=M/hardware=H/part-INDEX-KEY.parquet`; sorted by name, each partition is in order.

    key: of the campaign, in every name.  token: random text in the manifest, by which a worker on another machine knows
    whether it sees the folder itself.  run: random text in names of unfinished files, which are those of one run.
    """

    folder: Path
    key: str
    token: str
    run: str = field(default_factory=lambda: secrets.token_hex(8))

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
                self._replace(self.folder / MANIFEST, text.encode())

    def store(self, path: Path, content: bytes) -> None:
        """Write the file of a chunk; a chunk that is computed twice replaces its own file."""
        with _told(self.folder):
            whole = self.folder / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            self._replace(whole, content)

    def finished(self, rows: Sequence[int]) -> tuple[set[int], tuple[str, ...]]:
        """Positions of the chunks whose files are there and whole, and paths of Parquet files of something else.

        rows: of each chunk.  A part that is damaged, or stands where it was not written, is of something else until its
        chunk is computed anew.
        """
        found: set[int] = set()
        foreign: list[str] = []
        with _told(self.folder):
            paths = sorted(path for path in self.folder.rglob("*.parquet") if path.is_file())
        for path in paths:
            index = self.index_of(path, rows)
            if index is None:
                foreign.append(path.relative_to(self.folder).as_posix())
            else:
                found.add(index)
        return found, tuple(foreign)

    def index_of(self, path: Path, rows: Sequence[int]) -> int | None:
        """The position of the chunk of a file; None if it is no part that is whole."""
        name = PART.fullmatch(path.name)
        index = int(name[1]) if name and name[2] == self.key[:16] else len(rows)
        whole = index < len(rows) and _is_whole(path, path.relative_to(self.folder), rows[index])
        return index if whole else None

    def clear(self) -> None:
        """Remove files that killed workers of this run have left unfinished; another run may be writing its own."""
        for path in self.folder.glob(f"**/{UNFINISHED}{self.run}-*"):
            with suppress(OSError):
                path.unlink()

    def _replace(self, path: Path, content: bytes) -> None:
        """Write a file under another name first, so that it appears whole."""
        unfinished = path.with_name(f"{UNFINISHED}{self.run}-{secrets.token_hex(8)}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


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


def part(columns: Mapping[str, Any], path: Path) -> bytes:
    """The content of a chunk's file: pages with checksums, and in its metadata the path below the folder."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    table = arrow_table({name: values for name, values in columns.items() if name not in PARTITIONS})
    marked = table.replace_schema_metadata({**(table.schema.metadata or {}), PLACE: path.as_posix().encode()})
    parquet.write_table(marked, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def _is_whole(path: Path, place: Path, rows: int) -> bool:
    """Whether a file is the part that was written there, with all of its rows, by the checksums of its pages."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as opened:
            about = opened.metadata
            if about.num_rows != rows or (about.metadata or {}).get(PLACE) != place.as_posix().encode():
                return False
            for group in range(about.num_row_groups):
                opened.read_row_group(group)
    except (OSError, pa.ArrowException):
        return False
    return True


@contextmanager
def _told(name: str | Path) -> Iterator[None]:
    """Turn errors of the file system into one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write '{printable(name)}': {reason}") from error
