"""Inputs that decide a campaign's rows: the package's own code and data, and the files that a user named."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmviewer.core.data import ROOT, display_path
from llmviewer.core.errors import UserError, printable
from llmviewer.core.files import BESIDE
from llmviewer.core.version import __version__

#: Content of a larger file is not read whole: its size and its beginning stand for it [byte].
WHOLE_BYTES, BEGINNING_BYTES = 2**28, 2**20
SUFFIXES = (".py", ".yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a campaign.

    package: hash of the code and data of llmviewer.  files: the user's files, path -> hash.  folder: the current
    directory of the command, from which relative paths are read.
    """

    package: str
    files: Mapping[str, str]
    folder: str

    def here(self) -> Any:
        """A context in which the user's paths are read as where the campaign began.

        Raises UserError on a machine that has another llmviewer or other files.
        """
        if package_hash() != self.package:
            raise UserError(f"a worker runs another version of llmviewer, or with other data, than {__version__} here")
        for path, known in self.files.items():
            if file_hash(path) != known:
                raise UserError(f"a worker cannot read '{printable(path, 200)}', or reads another file there")
        return chdir(self.folder) if self.files and Path.cwd() != Path(self.folder) else nullcontext()


def inputs_of(read: Mapping[str, object]) -> Inputs:
    """The inputs of a campaign that has read these paths, some of which may not exist."""
    own = {path.resolve() for path in _package_files()}
    hashes = {
        path: file_hash(path) for path in sorted(read) if Path(path).is_file() and Path(path).resolve() not in own
    }
    return Inputs(package=package_hash(), files=hashes, folder=os.getcwd())  # noqa: PTH109


@lru_cache(maxsize=1)
def package_hash() -> str:
    """Hash of all code and data of the package, which is read once per process."""
    found = hashlib.sha256()
    for path in sorted(_package_files()):
        found.update(f"{display_path(path)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _package_files() -> Iterator[Path]:
    """Files of the package; its folders `reports`, `calibrate` and others are links in a checkout."""
    for root in (ROOT, *map(Path, BESIDE)):
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (Path(folder) / name for name in names if name.endswith(SUFFIXES))


def file_hash(path: str) -> str:
    """Hash of a file's content; empty for a file that cannot be read."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 (a path of a recording is text)
            size = os.fstat(stream.fileno()).st_size
            return hashlib.sha256(
                b"%d\n" % size + stream.read(WHOLE_BYTES if size <= WHOLE_BYTES else BEGINNING_BYTES)
            ).hexdigest()
    except OSError:
        return ""


def text_hash(value: object) -> str:
    """Hash of a JSON-like value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
