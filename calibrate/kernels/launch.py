"""Launch time of kernels that do next to nothing: from the host one by one, and inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.timer import PreparedKernel

#: Rows and columns of every operand: far too small to take time.
SMALL = 64


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """op `kernel`: add 1 to one element; `kernel_and_wait`: then wait for the device; others: by LAUNCHES."""
    if columns["op"] in LAUNCHES:
        dtype = torch.bfloat16 if buffers.kind == "cuda" else torch.float32
        x = buffers.random(dtype, (SMALL, SMALL))
        launch = LAUNCHES[columns["op"]]
        return PreparedKernel(run=lambda _: launch(x), graph=columns["graph"])
    x = buffers.random(torch.float32, (1,))
    if columns["op"] == "kernel":
        return PreparedKernel(run=lambda _: x.add_(1.0), graph=columns["graph"])
    return PreparedKernel(run=lambda _: x.add_(1.0).item(), graph=False)


def _attention(x: torch.Tensor) -> torch.Tensor:
    y = x[None, None]
    return F.scaled_dot_product_attention(y, y, y)


#: op -> a call of one operator on a small square matrix.
LAUNCHES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + x,
    "linear": lambda x: F.linear(x, x),
    "norm": lambda x: F.rms_norm(x, (SMALL,), x[0], 1e-5),
    "attention": _attention,
    "softmax": lambda x: torch.softmax(x, -1),
    "argmax": lambda x: x.argmax(-1),
    "silu": F.silu,
    "topk": lambda x: x.topk(8, -1),
    "sort": lambda x: x.sort(-1),
    "copy": lambda x: x.clone(),
}
