"""Files of profilers, told apart by their content.  A new format is a line here and a file beside it."""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path

from llmviewer.calibrate.diagnosis import kineto, nsight, rocprof
from llmviewer.calibrate.diagnosis.recording import Recording, Summary
from llmviewer.core import files
from llmviewer.core.errors import UserError, printable

#: Most bytes of a file, and of its content unpacked.
MAX_BYTES, MAX_UNPACKED = 2**30, 2**30
GZIP = b"\x1f\x8b"
KNOWN = (
    "a trace of torch.profiler (JSON), an SQLite export or cuda_gpu_kern_sum table of Nsight Systems, a kernel trace "
    "or kernel statistics of rocprofv3"
)


def read(path: Path) -> Recording | Summary:
    """The recording in a file, or its sums of kernels.  Raises UserError with one line for a file of another kind."""
    where = f"'{printable(path)}'"
    files.record(path)
    if files.head(path, len(nsight.SIGN)) == nsight.SIGN:
        files.remember_input(path)
        return nsight.recording(path)
    text = _unpacked(files.content(path, MAX_BYTES, "record fewer forward passes"), where)
    return _from_json(text, where) if text.lstrip()[:1] in (b"{", b"[") else _from_table(text, where)


def _from_json(text: bytes, where: str) -> Recording:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no profile: {printable(error, 120)}") from error
    if isinstance(content, list) and content and all(isinstance(event, dict) for event in content):
        content = {"traceEvents": content}  # Chrome's other form of a trace
    if kineto.is_trace(content):
        return kineto.recording(content)
    raise UserError(f"{where} has no traceEvents; a profile is {KNOWN}")


def _from_table(text: bytes, where: str) -> Recording | Summary:
    """Rows of a CSV table, below lines that `nsys stats` prints above it."""
    lines = text.decode("utf-8-sig", errors="replace").splitlines()
    for at, line in enumerate(lines[:50]):
        header = next(csv.reader([line]), [])
        if rocprof.is_trace(header):
            return rocprof.recording(list(csv.DictReader(lines[at:])))
        if rocprof.is_stats(header):
            return rocprof.summary(list(csv.DictReader(lines[at:])))
        if nsight.is_summary(header):
            return nsight.summary([row for row in csv.DictReader(lines[at:]) if row.get(nsight.NAME)])
    raise UserError(f"{where} is no profile; a profile is {KNOWN}")


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
