"""A whole Llama-type transformer layer: time of all its kernels, with and without a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import llama
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """Weights and KV cache are cold, the residual stream is warm."""
    dtype = DTYPES[columns["dtype"]]
    sizes, step = llama.LlamaConfig.from_json(columns["config"]), llama.ForwardPass.from_columns(columns)
    shapes = (*sizes.layer_shapes(), *sizes.cache_shapes(step.batch, step.length))
    rotation = buffers.rotating(dtype, *shapes)
    rope = llama.rope_tables(sizes, step, dtype, buffers.kind)
    x = buffers.random(dtype, (step.batch, step.new, sizes.hidden))

    def run(i: int) -> torch.Tensor:
        return llama.layer(x, rotation.tensors[i], sizes, step, rope)

    return rotation.kernel(run, graph=columns["graph"])
