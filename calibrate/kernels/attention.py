"""scaled_dot_product_attention, each backend by itself: causal over a prompt, and one new token against a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from calibrate.buffers import Buffers
from calibrate.kernels.dtypes import DTYPES
from calibrate.timer import Work

#: kernel of the tables -> backend of torch.
BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}


def build(columns: Mapping[str, Any], buffers: Buffers) -> Work:
    """Keys and values are cold, queries warm.  `seq` new tokens (prefill), or one against `context` (decode)."""
    dtype = DTYPES[columns["dtype"]]
    batch, heads, kv_heads, dim = (columns[name] for name in ("batch", "heads", "kv_heads", "head_dim"))
    causal = "seq" in columns
    queries, keys = (columns["seq"], columns["seq"]) if causal else (1, columns["context"])
    value_dim = columns["v_head_dim"]
    cache = buffers.rotating(dtype, (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim))
    q = buffers.random(dtype, (batch, heads, queries, dim))
    grouped = heads != kv_heads
    backend = BACKENDS[columns["kernel"]]

    def run(i: int) -> torch.Tensor:
        k, v = cache.tensors[i]
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return Work(
        run=run,
        copies=len(cache),
        rotated_bytes=cache.total_bytes,
        context=lambda: sdpa_kernel(backend),
    )
