"""Linear layer y[m, n] = x[m, k] w[n, k]^T in fp32, tf32, bf16 and fp16; weights are cold, the input is warm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, need_capability
from llmviewer.calibrate.timer import PreparedKernel


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:  # noqa: FBT001
    """Allow or forbid tf32 rounding of fp32 GEMMs inside the context."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """torch.mm into one output tensor that every call overwrites, as an allocator would reuse it."""
    name = columns["dtype"]
    if name in ("bfloat16", "tf32"):
        need_capability(buffers.kind, 8, 0, name)
    m, n, k = columns["m"], columns["n"], columns["k"]
    weights = buffers.rotating(DTYPES[name], (n, k))
    x, y = buffers.random(DTYPES[name], (m, k)), buffers.empty(DTYPES[name], (m, n))
    transposed = [weight.t() for (weight,) in weights.tensors]
    return weights.kernel(lambda i: torch.mm(x, transposed[i], out=y), context=lambda: tf32(name == "tf32"))
