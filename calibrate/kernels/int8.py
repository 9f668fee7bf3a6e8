"""int8 GEMM with int32 output (torch._int_mm): W8A8 without its scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import UnsupportedError, need_capability
from llmviewer.calibrate.timer import PreparedKernel

#: Fewest rows: cublasLt needs more than 16, and k and n in multiples of 8.
MIN_ROWS = 17


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Weights are [n, k] on CUDA, as in a checkpoint, and [k, n] on a CPU, which would otherwise repack them."""
    need_capability(buffers.kind, 7, 5, "_int_mm")
    m, n, k = columns["m"], columns["n"], columns["k"]
    if buffers.kind == "cuda" and m < MIN_ROWS:
        raise UnsupportedError(f"torch._int_mm needs at least {MIN_ROWS} rows on CUDA")
    on_cuda = buffers.kind == "cuda"
    weights = buffers.rotating(torch.int8, (n, k) if on_cuda else (k, n))
    x, y = buffers.random(torch.int8, (m, k)), buffers.empty(torch.int32, (m, n))
    operands = [weight.t() if on_cuda else weight for (weight,) in weights.tensors]
    return weights.kernel(lambda i: torch._int_mm(x, operands[i], out=y))
