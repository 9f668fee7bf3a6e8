"""Decode attention of torch's FlashAttention over packed sequences: whole or paged caches, sliding windows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.timer import PreparedKernel

#: Tokens of a page; FlashAttention-2 takes multiples of 256.
PAGE = 256


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """One query per sequence over `context` keys, of which it sees the last `window` (0: all); keys are cold."""
    attend, known = varlen(buffers.kind)
    dtype, device = DTYPES[columns["dtype"]], buffers.kind
    batch, heads, kv_heads, dim = (columns[name] for name in ("batch", "heads", "kv_heads", "head_dim"))
    context, window, paged = columns["context"], columns["window"], columns["kernel"].endswith("paged")
    pages = -(-context // PAGE)
    shape = (batch * pages, PAGE, kv_heads, dim) if paged else (batch * context, kv_heads, dim)
    cache = buffers.rotating(dtype, shape, shape)
    q = buffers.random(dtype, (batch, heads, dim))
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
    if window:
        options["window_size"] = _supported("window_size", (window - 1, 0), known)
    if paged:
        table = torch.randperm(batch * pages, device=device).to(torch.int32).view(batch, pages)
        used = torch.full((batch,), context, dtype=torch.int32, device=device)
        options |= {"block_table": _supported("block_table", table, known), "seqused_k": used}
    keys = None if paged else starts * context

    def run(i: int) -> Any:
        k, v = cache.tensors[i]
        return attend(q, k, v, starts, keys, 1, context, **options)

    return PreparedKernel(run=run, copies=len(cache), rotated_bytes=cache.total_bytes)


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
