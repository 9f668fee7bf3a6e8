"""Streaming through memory: copy (1 read, 1 write), triad a = b + s c (2 reads, 1 write), read (a sum)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`bytes`: size of each array.  `moved_bytes`: bytes read and written in total."""
    dtype = DTYPES[columns["dtype"]]
    elements = columns["bytes"] // dtype.itemsize
    arrays = {"copy": 2, "triad": 3, "read": 1}[columns["op"]]
    rotation = buffers.rotating(dtype, *[(elements,)] * arrays)
    tensors = rotation.tensors

    def copy(i: int) -> None:
        target, source = tensors[i]
        target.copy_(source)

    def triad(i: int) -> None:
        target, b, c = tensors[i]
        torch.add(b, c, alpha=0.5, out=target)

    def read(i: int) -> None:
        tensors[i][0].sum()

    run = {"copy": copy, "triad": triad, "read": read}[columns["op"]]
    return rotation.kernel(run)
