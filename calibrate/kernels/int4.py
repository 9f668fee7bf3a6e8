"""W4A16 GEMM: bf16 inputs, packed 4-bit weights with a scale and zero point per group (tinygemm in torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import need_capability
from llmviewer.calibrate.timer import PreparedKernel

#: Tiles along k per warp: the maximum, as in gpt-fast and torchao.
INNER_K_TILES = 8


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Weights are random bits in the packed shape; any bits are valid."""
    need_capability(buffers.kind, 8, 0, "_weight_int4pack_mm")
    m, n, k, group = columns["m"], columns["n"], columns["k"], columns["group"]
    shape, dtype = _packed(n, k, buffers.kind)
    weights = buffers.rotating(dtype, shape)
    scales = buffers.random(torch.bfloat16, (k // group, n, 2))
    x = buffers.random(torch.bfloat16, (m, k))
    product = _product(buffers.kind)
    return weights.kernel(lambda i: product(x, weights.tensors[i][0], group, scales))


def _product(kind: str) -> Callable[..., torch.Tensor]:
    mm: Callable[..., torch.Tensor] = torch._weight_int4pack_mm if kind == "cuda" else torch._weight_int4pack_mm_for_cpu
    return mm


def _packed(n: int, k: int, kind: str) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of n x k weights as packed on this device."""
    if kind == "cuda":
        pairs = torch.zeros((n, k // 2), dtype=torch.uint8, device=kind)
        packed = torch._convert_weight_to_int4pack(pairs, INNER_K_TILES)
    else:
        packed = torch._convert_weight_to_int4pack_for_cpu(torch.zeros((n, k), dtype=torch.int32), 1)
    return tuple(packed.shape), packed.dtype
