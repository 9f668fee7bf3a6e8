"""fp8 GEMM with bf16 output (torch._scaled_mm): a scale per tensor, row or block; the input is already fp8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import need_capability
from llmviewer.calibrate.timer import PreparedKernel

#: Elements of a row of the input, and rows and columns of the weights, that share a scale.
BLOCK = 128
#: cuBLASLt takes rows, and scales of blocks along k, in multiples of this.
ALIGNED = 4

Scales = tuple[torch.Tensor, torch.Tensor]


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """e4m3 inputs and weights; needs Ada, Hopper or later, blocks of scales Hopper or later.

    Rows with blocks of scales are padded to a multiple of four, which cuBLASLt needs, as engines do.
    """
    name = columns["dtype"]
    need_capability(buffers.kind, *((9, 0) if name == "fp8_block" else (8, 9)), "_scaled_mm")
    m, n, k = columns["m"], columns["n"], columns["k"]
    if name == "fp8_block":
        m = _padded(m)
    weights = buffers.rotating(torch.float8_e4m3fn, (n, k))
    x = buffers.random(torch.float8_e4m3fn, (m, k))
    one, other = SCALES[name](m, n, k, buffers.kind)
    transposed = [weight.t() for (weight,) in weights.tensors]
    fast = name == "fp8_rows"  # sums in the registers of the matrix units, as serving engines and torchao do

    def run(i: int) -> torch.Tensor:
        return torch._scaled_mm(
            x, transposed[i], scale_a=one, scale_b=other, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    return PreparedKernel(run=run, copies=len(weights), rotated_bytes=weights.total_bytes)


def _of_tensors(m: int, n: int, k: int, device: str) -> Scales:
    one = torch.ones((), device=device)
    return one, one


def _of_rows(m: int, n: int, k: int, device: str) -> Scales:
    return torch.ones((m, 1), device=device), torch.ones((1, n), device=device)


def _of_blocks(m: int, n: int, k: int, device: str) -> Scales:
    """Scales of 1 x 128 inputs, stored along the tokens, and of 128 x 128 weights, stored along k."""
    blocks = -(-k // BLOCK)
    of_weights = torch.ones((-(-n // BLOCK), _padded(blocks)), device=device)[:, :blocks]
    return torch.ones((blocks, m), device=device).t(), of_weights.t()


def _padded(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


#: dtype of a row -> (m, n, k, device) -> scales of input and weights.
SCALES: dict[str, Callable[[int, int, int, str], Scales]] = {
    "fp8": _of_tensors,
    "fp8_rows": _of_rows,
    "fp8_block": _of_blocks,
}
