"""Products with 2:4-sparse weights (cuSPARSELt in torch): two of every four weights are zero and not stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError, need_capability
from llmviewer.calibrate.timer import PreparedKernel, copies

#: End of the dtype of a row.
SUFFIX = "_2of4"
#: Bytes of an element -> rows of the input are a multiple of this.
ROWS = {1: 16, 2: 8}


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """y[m, n] = x[m, k] w[n, k]^T with compressed w; 8-bit inputs give a bf16 output, as dense ones do.

    Rows are padded to what cuSPARSELt takes, as torch's sparse tensors do, and its search chooses the kernel.
    """
    need_sparse_units(buffers.kind)
    m, n, k = columns["m"], columns["n"], columns["k"]
    name = columns["dtype"].removesuffix(SUFFIX)
    packed = compressed(buffers.random(DTYPES[name], (n, k)))
    each = float(packed.numel() * packed.element_size())
    weights = [packed.clone() for _ in range(copies(each, buffers.cache_bytes))]
    rows = ROWS[DTYPES[name].itemsize]
    x = buffers.random(DTYPES[name], (-(-m // rows) * rows, k))
    out = torch.bfloat16 if name == "fp8" else None
    chosen = fastest(packed, x, out)
    return PreparedKernel(
        run=lambda i: product(x, weights[i], out, **chosen), copies=len(weights), rotated_bytes=each * len(weights)
    )


def need_sparse_units(kind: str) -> None:
    """Raise UnsupportedError without cuSPARSELt, or on a CUDA device without 2:4 units."""
    if kind != "cuda":
        raise UnsupportedError("2:4-sparse products need CUDA with cuSPARSELt")
    need_capability(kind, 8, 0, "2:4 sparsity")


def compressed(weight: torch.Tensor) -> torch.Tensor:
    """The stored half of a matrix and its positions, after the last two of every four elements were set to zero."""
    weight.view(torch.int8 if weight.dtype.itemsize == 1 else torch.int16).view(len(weight), -1, 4)[..., 2:] = 0
    return torch._cslt_compress(weight)


def fastest(packed: torch.Tensor, x: torch.Tensor, out: torch.dtype | None) -> dict[str, int]:
    """Algorithm, and division of the depth, that cuSPARSELt's search finds fastest; the former alone in older torch."""
    search = getattr(getattr(torch._C, "_cusparselt", None), "mm_search", None)
    if search is not None:
        kernel, parts, mode, *_ = search(packed, x.t(), None, None, out, True)
        return {"alg_id": kernel, "split_k": parts, "split_k_mode": mode}
    return {"alg_id": int(torch._cslt_sparse_mm_search(packed, x.t(), out_dtype=out, transpose_result=True))}


def product(x: torch.Tensor, packed: torch.Tensor, out: torch.dtype | None, **kernel: int) -> torch.Tensor:
    """x[m, k] times the transposed matrix that was compressed: [m, n].  kernel: as found by `fastest`."""
    return torch._cslt_sparse_mm(packed, x.t(), out_dtype=out, transpose_result=True, **kernel)  # type: ignore[arg-type]
