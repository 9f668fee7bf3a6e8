"""Grouped GEMM of experts (torch._grouped_mm): m rows sorted by expert, each times its expert's matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError, need_capability
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`active` of `experts` experts get m / active rows each; weights of the others are not read."""
    need_grouped_gemm(buffers.kind)
    m, n, k, experts, active = (columns[name] for name in ("m", "n", "k", "experts", "active"))
    dtype = DTYPES[columns["dtype"]]
    weights = buffers.rotating(dtype, (experts, n, k))
    x = buffers.random(dtype, (m, k))
    ends = torch.tensor(row_ends(m, experts, active), dtype=torch.int32, device=buffers.kind)
    transposed = [weight.transpose(1, 2) for (weight,) in weights.tensors]
    return PreparedKernel(
        run=lambda i: torch._grouped_mm(x, transposed[i], offs=ends),
        copies=len(weights),
        rotated_bytes=weights.total_bytes * active / experts,
    )


def need_grouped_gemm(kind: str) -> None:
    """Raise UnsupportedError without torch._grouped_mm or on a CUDA device that lacks it."""
    if not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError(f"torch {torch.__version__} has no grouped GEMM")
    need_capability(kind, 8, 0, "_grouped_mm")


def row_ends(rows: int, experts: int, active: int) -> list[int]:
    """End row of each expert's share; `active` experts, evenly spread, get equal shares."""
    ends, done, at = [], 0, 0
    for expert in range(experts):
        if expert * active // experts >= done and done < active:
            done += 1
            at = rows * done // active
        ends.append(at)
    return ends
