"""torch's compiled flex_attention: prompts whose masked tiles are skipped (sliding windows), and attention sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError
from llmviewer.calibrate.kernels.elementwise import need_compiler
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """A prompt of which each token sees itself and the `window` - 1 before it, or all; keys and values are cold.

    `flex_sinks`: one more score per head in the denominator, by the log of the sum of the others, as transformers does.
    """
    need_compiler(buffers.kind)
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:  # before torch 2.5
        raise UnsupportedError(f"torch {torch.__version__} has no flex_attention") from error
    dtype, window = DTYPES[columns["dtype"]], columns["window"]
    batch, heads, kv_heads, dim, seq = (columns[name] for name in ("batch", "heads", "kv_heads", "head_dim", "seq"))
    cache = buffers.rotating(dtype, *[(batch, kv_heads, seq, dim)] * 2)
    q, sinks = buffers.random(dtype, (batch, heads, seq, dim)), buffers.random(torch.float32, (heads, 1))

    def seen(b: Any, h: Any, at: Any, key: Any) -> Any:
        return (key <= at) & (at - key < window) if window else key <= at

    mask = create_block_mask(seen, None, None, seq, seq, device=buffers.kind)

    def attend(k: torch.Tensor, v: torch.Tensor) -> Any:
        if not columns["kernel"].endswith("sinks"):
            return flex_attention(q, k, v, block_mask=mask, enable_gqa=heads != kv_heads)
        out, total = flex_attention(q, k, v, block_mask=mask, enable_gqa=heads != kv_heads, return_lse=True)
        return out * torch.sigmoid(total - sinks)[..., None].to(dtype)

    torch.compiler.reset()  # which otherwise runs the ninth shape uncompiled
    compiled = torch.compile(attend, dynamic=False)
    compiled(*cache.tensors[0])  # outside the samples
    return cache.kernel(lambda i: compiled(*cache.tensors[i]))
