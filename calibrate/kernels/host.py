"""Copies between host and device, page-locked or not, the host's own memory, and its disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import UnsupportedError
from llmviewer.calibrate.timer import PreparedKernel

#: Bytes of one write or read of a file.
CHUNK = 2**24


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`bytes` in one piece; timed from an idle device, with the time of the host."""
    made = _disk if columns["op"].startswith("disk") else _memory if columns["op"].startswith("memory") else _link
    return PreparedKernel(run=made(columns, buffers), graph=False)


def _link(columns: Mapping[str, Any], buffers: Buffers) -> Callable[[int], Any]:
    if buffers.kind != "cuda":
        raise UnsupportedError("copies between host and device need CUDA")
    host = torch.ones(columns["bytes"], dtype=torch.uint8, pin_memory=columns["pinned"])
    device = torch.ones(columns["bytes"], dtype=torch.uint8, device=buffers.kind)
    target, source = (device, host) if columns["op"] == "h2d" else (host, device)
    return lambda _: target.copy_(source, non_blocking=columns["pinned"])


def _memory(columns: Mapping[str, Any], buffers: Buffers) -> Callable[[int], Any]:
    """`memory_copy`: one array is read, one written, with the threads of torch; `memory_read`: a sum."""
    source = torch.ones(columns["bytes"] // 4)
    if columns["op"] == "memory_read":
        return lambda _: source.sum()
    target = torch.empty_like(source)
    return lambda _: target.copy_(source)


def _disk(columns: Mapping[str, Any], buffers: Buffers) -> Callable[[int], Any]:
    """`disk_write`: to a temporary file and onto the disk; `disk_read`: without the pages that the system keeps."""
    chunk, count = os.urandom(min(CHUNK, columns["bytes"])), -(-columns["bytes"] // CHUNK)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the kernel

    def write(_: int) -> None:
        file.seek(0)
        for _ in range(count):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())

    def read(_: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        while file.read(CHUNK):
            pass

    write(0)
    return write if columns["op"] == "disk_write" else read
