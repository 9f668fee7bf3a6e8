"""Decode attention of torch's FlashAttention over packed sequences: whole or paged caches, sliding windows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers, Rotation
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.timer import PreparedKernel

#: Tokens of a page; FlashAttention-2 takes multiples of 256.
PAGE = 256


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """One query per sequence over `context` keys, of which it sees the last `window` (0: all); keys are cold."""
    attend, known = varlen(buffers.kind)
    dtype, device = DTYPES[columns["dtype"]], buffers.kind
    batch, heads, kv_heads, dim = (columns[name] for name in ("batch", "heads", "kv_heads", "head_dim"))
    context, window, keys = columns["context"], columns["window"], None
    q = buffers.random(dtype, (batch, heads, dim))
    options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
    if window:
        options["window_size"] = _supported("window_size", (window - 1, 0), known)
    if columns["kernel"].endswith("paged"):
        cache, table, used = pages(columns, buffers, PAGE, dtype)
        options |= {"block_table": _supported("block_table", table, known), "seqused_k": used}
    else:
        cache = buffers.rotating(dtype, *[(batch * context, kv_heads, dim)] * 2)
        keys = starts(batch, context, device)
    queries = starts(batch, 1, device)

    def run(i: int) -> Any:
        k, v = cache.tensors[i]
        return attend(q, k, v, queries, keys, 1, context, **options)

    return cache.kernel(run)


def starts(batch: int, each: int, device: str) -> torch.Tensor:
    """First row of each of `batch` sequences of `each` packed rows, and the number of rows: [batch + 1]."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * each


def pages(
    columns: Mapping[str, Any], buffers: Buffers, size: int, dtype: torch.dtype
) -> tuple[Rotation, torch.Tensor, torch.Tensor]:
    """Cold keys and values in pages of `size` tokens, [pages, size, heads, width] each, and their page table."""
    table, used = page_table(columns["batch"], columns["context"], size, buffers.kind)
    cache = buffers.rotating(dtype, *[(table.numel(), size, columns["kv_heads"], columns["head_dim"])] * 2)
    return cache, table, used


def page_table(batch: int, context: int, size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the pages of every sequence, in any order, [batch, pages of one]; and its tokens, [batch]."""
    count = -(-context // size)
    table = torch.randperm(batch * count, device=device).to(torch.int32).view(batch, count)
    return table, torch.full((batch,), context, dtype=torch.int32, device=device)


def varlen(kind: str) -> tuple[Callable[..., Any], frozenset[str]]:
    """torch's attention over packed sequences, and the names of its arguments.  Raises UnsupportedError."""
    if kind != "cuda":
        raise UnsupportedError("varlen_attn needs CUDA")
    try:
        attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(f"torch {torch.__version__} has no varlen_attn") from error
    return attend, frozenset(inspect.signature(attend).parameters)


def _supported(name: str, value: Any, known: frozenset[str]) -> Any:
    if name not in known:
        raise UnsupportedError(f"varlen_attn of torch {torch.__version__} has no {name}")
    return value
