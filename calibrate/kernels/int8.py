"""int8 times int8 into int32 (torch._int_mm): the product of W8A8 without its scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import UnsupportedError, need_capability
from llmviewer.calibrate.timer import PreparedKernel

#: cublasLt takes more than 16 rows, and k and n in multiples of 8.
LEAST_ROWS = 17


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Weights stand as a checkpoint keeps them, [n, k], on CUDA; [k, n] on a processor, which would repack them."""
    need_capability(buffers.kind, 7, 5, "_int_mm")
    m, n, k = columns["m"], columns["n"], columns["k"]
    if buffers.kind == "cuda" and m < LEAST_ROWS:
        raise UnsupportedError(f"torch._int_mm takes at least {LEAST_ROWS} rows on CUDA")
    on_cuda = buffers.kind == "cuda"
    weights = buffers.rotating(torch.int8, (n, k) if on_cuda else (k, n))
    x, y = buffers.random(torch.int8, (m, k)), buffers.empty(torch.int32, (m, n))
    operands = [weight.t() if on_cuda else weight for (weight,) in weights.tensors]
    return PreparedKernel(
        run=lambda i: torch._int_mm(x, operands[i], out=y),
        copies=len(weights),
        rotated_bytes=weights.total_bytes,
    )
