"""fp8 GEMM with bf16 output (torch._scaled_mm), one scale per tensor; the input is already fp8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import need_capability
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """e4m3 inputs and weights; needs Ada, Hopper or later."""
    need_capability(buffers.kind, 8, 9, "_scaled_mm")
    m, n, k = columns["m"], columns["n"], columns["k"]
    weights = buffers.rotating(torch.float8_e4m3fn, (n, k))
    x = buffers.random(torch.float8_e4m3fn, (m, k))
    one = torch.ones((), device=buffers.kind)
    transposed = [weight.t() for (weight,) in weights.tensors]

    def run(i: int) -> torch.Tensor:
        return torch._scaled_mm(x, transposed[i], scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return PreparedKernel(run=run, copies=len(weights), rotated_bytes=weights.total_bytes)
