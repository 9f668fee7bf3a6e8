"""Launch time of an empty kernel: from the host one by one, and inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """op `kernel`: add 1 to one element; `kernel_and_wait`: then wait for the device."""
    x = buffers.random(torch.float32, (1,))
    if columns["op"] == "kernel":
        return PreparedKernel(run=lambda _: x.add_(1.0), graph=columns["graph"])
    return PreparedKernel(run=lambda _: x.add_(1.0).item(), graph=False)
