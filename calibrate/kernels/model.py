"""A small Llama-type model: embedding, layers, final norm, logits of the last token; no sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import llama
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """One copy contains all weights and the KV cache; there are several if it is smaller than twice the L2 cache."""
    dtype = DTYPES[columns["dtype"]]
    sizes, step = llama.LlamaConfig.from_json(columns["config"]), llama.ForwardPass.from_columns(columns)
    one = (*sizes.layer_shapes(), *sizes.cache_shapes(step.batch, step.length))
    tied = columns["config"]["tie_word_embeddings"]
    tables = [(sizes.vocabulary, sizes.hidden)] * (1 if tied else 2)
    rotation = buffers.rotating(dtype, *one * sizes.layers, *tables, (sizes.hidden,))
    rope = llama.rope_tables(sizes, step, dtype, buffers.kind)
    tokens = torch.randint(0, sizes.vocabulary, (step.batch, step.new), device=buffers.kind)

    def run(i: int) -> torch.Tensor:
        *layers, norm = rotation.tensors[i]
        head, embedding = layers[-1], layers[-len(tables)]
        x = F.embedding(tokens, embedding)
        for at in range(0, sizes.layers * len(one), len(one)):
            x = llama.layer(x, tuple(layers[at : at + len(one)]), sizes, step, rope)
        return F.linear(F.rms_norm(x[:, -1], (sizes.hidden,), norm, 1e-5), head)

    return rotation.kernel(run, graph=columns["graph"])
