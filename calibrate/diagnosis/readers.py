"""Files of profilers, told apart by their content: torch.profiler, and what others add here."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from llmviewer.calibrate.diagnosis import kineto
from llmviewer.calibrate.diagnosis.recording import Recording, Summary
from llmviewer.core import files
from llmviewer.core.errors import UserError, printable

#: Most bytes of a file, and of its content unpacked.
MAX_BYTES, MAX_UNPACKED = 2**28, 2**30
GZIP = b"\x1f\x8b"


def read(path: Path) -> Recording | Summary:
    """The recording in a file.  Raises UserError with one line for a file of another kind."""
    where = f"'{printable(path)}'"
    text = _unpacked(files.content(path, MAX_BYTES, "record fewer forward passes"), where)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no profile: {printable(error, 120)}") from error
    if kineto.is_trace(content):
        return kineto.recording(content)
    raise UserError(f"{where} is no trace of torch.profiler: it has no traceEvents")


def _unpacked(content: bytes, where: str) -> bytes:
    """The content of a file, unpacked if it is packed with gzip."""
    if not content.startswith(GZIP):
        return content
    try:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = unpacker.decompress(content, MAX_UNPACKED)
    except zlib.error as error:
        raise UserError(f"{where} cannot be unpacked: {printable(error)}") from error
    if unpacker.unconsumed_tail:
        raise UserError(f"{where} is larger than {MAX_UNPACKED // 2**20:,} MiB unpacked; record fewer forward passes")
    if not unpacker.eof:
        raise UserError(f"{where} is cut off")
    return text
