"""Multi-head latent attention: expanded heads with keys wider than values (prefill), and the absorbed form (decode),
in which all heads share one latent as key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import sdpa_kernel

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import attention
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`kernel` is `mla_` plus the backend; values of the absorbed form are the first elements of its keys."""
    backend = columns["kernel"].removeprefix("mla_")
    if "seq" in columns:
        return attention.build({**columns, "kernel": backend}, buffers)
    dtype = DTYPES[columns["dtype"]]
    batch, heads, context = columns["batch"], columns["heads"], columns["context"]
    latent = buffers.rotating(dtype, (batch, 1, context, columns["head_dim"]))
    q = buffers.random(dtype, (batch, 1, heads, columns["head_dim"]))
    width = columns["v_head_dim"]

    def run(i: int) -> torch.Tensor:
        (k,) = latent.tensors[i]
        return F.scaled_dot_product_attention(q, k, k[..., :width])  # heads are passed as rows of one query

    return latent.kernel(run, context=lambda: sdpa_kernel(attention.BACKENDS[backend]))
