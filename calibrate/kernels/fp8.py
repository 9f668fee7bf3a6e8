"""fp8 and fp4 GEMM with bf16 output (torch._scaled_mm): a scale per tensor, row or block; the input is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import UnsupportedError, need_capability
from llmviewer.calibrate.timer import PreparedKernel

#: Elements of a row of the input, and rows and columns of the weights, that share a scale.
BLOCK = 128
#: cuBLASLt takes rows, and scales of blocks along k, in multiples of this.
ALIGNED = 4
#: Elements that share a scale along k, elements of a byte, dtype of the scales, and the byte that is 1 in it: formats
#: whose scales cuBLASLt takes in tiles of 128 rows by 4 (Blackwell; `torch._scaled_mm` from torch 2.8 on).
#: Source: https://docs.nvidia.com/cuda/cublas/index.html#d-block-scaling-factors-layout
TILED = {"mxfp8": (32, 1, "float8_e8m0fnu", 0x7F), "nvfp4": (16, 2, "float8_e4m3fn", 0x38)}
TILE_ROWS = 128
#: dtype of a row -> compute capability; others need that of Ada.
CAPABILITY = {"fp8_block": (9, 0), **dict.fromkeys(TILED, (10, 0))}

Scales = tuple[torch.Tensor, torch.Tensor]


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """e4m3 inputs and weights, or pairs of e2m1; needs Ada or later, blocks of scales Hopper or later.

    Rows with blocks of scales are padded to a multiple of four, which cuBLASLt needs, as engines do.
    """
    name = columns["dtype"]
    need_capability(buffers.kind, *CAPABILITY.get(name, (8, 9)), f"_scaled_mm of {name}")
    m, n, k = columns["m"], columns["n"], columns["k"]
    if name == "fp8_block":
        m = _padded(m)
    packed = TILED[name][1] if name in TILED else 1
    stored = torch.uint8 if packed > 1 else torch.float8_e4m3fn
    elements = _dtype("float4_e2m1fn_x2") if packed > 1 else stored
    weights = buffers.rotating(stored, (n, k // packed))
    x = buffers.random(stored, (m, k // packed)).view(elements)
    one, other = SCALES[name](m, n, k, buffers.kind)
    transposed = [weight.view(elements).t() for (weight,) in weights.tensors]
    fast = name == "fp8_rows"  # sums in the registers of the matrix units, as serving engines and torchao do

    def run(i: int) -> torch.Tensor:
        return torch._scaled_mm(
            x, transposed[i], scale_a=one, scale_b=other, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    return weights.kernel(run)


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


def _tiled(name: str) -> Callable[[int, int, int, str], Scales]:
    """Scales of rows of the input and of the weights."""
    return lambda m, n, k, device: (tiles(name, m, k, device).flatten(), tiles(name, n, k, device).flatten())


def tiles(name: str, rows: int, k: int, device: str) -> torch.Tensor:
    """Scales of 1 of `rows` x k elements in a format of TILED, as bytes in whole tiles."""
    block, _, dtype, byte = TILED[name]
    shape = (_padded(rows, TILE_ROWS), _padded(-(-k // block)))
    return torch.full(shape, byte, dtype=torch.uint8, device=device).view(_dtype(dtype))


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"torch {torch.__version__} has no {name}")
    return found


def _padded(count: int, step: int = ALIGNED) -> int:
    return -(-count // step) * step


#: dtype of a row -> (m, n, k, device) -> scales of input and weights.
SCALES: dict[str, Callable[[int, int, int, str], Scales]] = {
    "fp8": _of_tensors,
    "fp8_rows": _of_rows,
    "fp8_block": _of_blocks,
    **{name: _tiled(name) for name in TILED},
}
