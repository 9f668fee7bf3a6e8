"""All-reduce over the visible devices with NCCL, from one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`bytes`: size of the tensor on each device.  No CUDA graph: a capture includes the work of only one device."""
    gpus = columns["gpus"]
    if buffers.kind != "cuda" or torch.cuda.device_count() < gpus:
        raise UnsupportedError(f"needs {gpus} CUDA devices")
    from torch.cuda import nccl

    dtype = DTYPES[columns["dtype"]]
    elements = columns["bytes"] // dtype.itemsize
    tensors = [torch.zeros(elements, dtype=dtype, device=f"cuda:{gpu}") for gpu in range(gpus)]
    streams = [torch.cuda.current_stream(gpu) for gpu in range(gpus)]

    def run(_: int) -> None:
        streams[0] = torch.cuda.current_stream(0)  # the stream on which the timing events are recorded
        nccl.all_reduce(tensors, streams=streams)  # type: ignore[no-untyped-call]

    return PreparedKernel(run=run, graph=False)
