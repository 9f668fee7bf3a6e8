"""scaled_dot_product_attention without a mask: every token of a sequence sees all of its tokens (vision towers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import sdpa_kernel

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.attention import BACKENDS
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Keys and values are cold, queries warm, as for the other attention kernels."""
    dtype = DTYPES[columns["dtype"]]
    shape = tuple(columns[name] for name in ("batch", "heads", "seq", "head_dim"))
    cache = buffers.rotating(dtype, shape, shape)
    q = buffers.random(dtype, shape)

    def run(i: int) -> torch.Tensor:
        k, v = cache.tensors[i]
        return F.scaled_dot_product_attention(q, k, v)

    return cache.kernel(run, context=lambda: sdpa_kernel(BACKENDS[columns["kernel"]]))
