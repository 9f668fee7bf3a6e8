"""scaled_dot_product_attention with each backend: causal over a prompt, and one new token over a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel

#: `kernel` in the tables -> torch backend.
BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Keys and values are cold, queries warm.  `seq` new tokens after `prefix`, or one over `context` (decode)."""
    dtype = DTYPES[columns["dtype"]]
    batch, heads, kv_heads, dim = (columns[name] for name in ("batch", "heads", "kv_heads", "head_dim"))
    causal = "seq" in columns
    prefix = columns.get("prefix", 0)
    queries, keys = (columns["seq"], prefix + columns["seq"]) if causal else (1, columns["context"])
    value_dim = columns["v_head_dim"]
    cache = buffers.rotating(dtype, (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim))
    q = buffers.random(dtype, (batch, heads, queries, dim))
    grouped = heads != kv_heads
    backend = BACKENDS[columns["kernel"]]
    # `is_causal` aligns the first query with the first key, so a prefix needs an explicit mask
    mask = _mask(queries, keys, backend, buffers.kind) if prefix else None

    def run(i: int) -> torch.Tensor:
        k, v = cache.tensors[i]
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and not prefix, enable_gqa=grouped
        )

    return cache.kernel(run, context=lambda: sdpa_kernel(backend))


def _mask(queries: int, keys: int, backend: SDPBackend, device: str) -> torch.Tensor:
    """Causal mask in which the last query sees all keys; FlashAttention accepts only torch's named mask."""
    if backend is SDPBackend.FLASH_ATTENTION:
        return causal_lower_right(queries, keys)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
