"""A whole transformer layer of Llama's shape: what its kernels cost together, with a CUDA graph and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import llama
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import Work


def build(columns: Mapping[str, Any], buffers: Buffers) -> Work:
    """Weights and cache are cold, the residual stream warm."""
    dtype = DTYPES[columns["dtype"]]
    sizes, now = llama.LlamaConfig.of(columns["config"]), llama.Pass.of(columns)
    shapes = (*sizes.layer_shapes(), *sizes.cache_shapes(now.batch, now.length))
    rotation = buffers.rotating(dtype, *shapes)
    turn = llama.rotations(sizes, now, dtype, buffers.kind)
    x = buffers.random(dtype, (now.batch, now.new, sizes.hidden))

    def run(i: int) -> torch.Tensor:
        return llama.layer(x, rotation.tensors[i], sizes, now, turn)

    return Work(run=run, copies=len(rotation), rotated_bytes=rotation.total_bytes, graph=columns["graph"])
