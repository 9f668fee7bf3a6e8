"""Kernels that a serving step runs beside products and attention: choice of the next token, writes to the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.timer import PreparedKernel

#: Tokens that the samplers `top_k` and `top_p` keep: a number, and a share of the probability.
TOP_K, TOP_P = 50, 0.9
#: Slots of the cache over tokens written: pages in use are spread over it.
SLOTS = 8

Choose = Callable[[torch.Tensor], torch.Tensor]


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """`tokens` rows of `width`: logits over a vocabulary, or new keys and values of one layer; all are cold."""
    tokens, width, op = columns["tokens"], columns["width"], columns["op"]
    rotation = buffers.rotating(torch.bfloat16, (tokens, width))
    if op in SAMPLERS:
        choose = SAMPLERS[op]
        run: Callable[[int], Any] = lambda i: choose(rotation.tensors[i][0])  # noqa: E731
    else:
        run = _cache_write(columns, buffers, rotation.tensors)
    return rotation.kernel(run)


def _cache_write(
    columns: Mapping[str, Any], buffers: Buffers, rows: list[tuple[torch.Tensor, ...]]
) -> Callable[[int], Any]:
    """Copy new keys and values to their slots; a cache of 8 bits takes the converted ones as bytes."""
    tokens, width, dtype = columns["tokens"], columns["width"], DTYPES[columns["dtype"]]
    stored = torch.uint8 if dtype.itemsize == 1 else dtype
    cache = buffers.empty(stored, (SLOTS * tokens, width))
    slots = torch.randperm(SLOTS * tokens, device=buffers.kind)[:tokens]

    def run(i: int) -> torch.Tensor:
        new = rows[i][0] if stored is dtype else rows[i][0].to(dtype).view(stored)
        return cache.index_copy_(0, slots, new)

    return run


def _drawn(probabilities: torch.Tensor) -> torch.Tensor:
    """A token by its probability, as the largest of probability over exponential noise: the host need not wait."""
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def _sample(logits: torch.Tensor) -> torch.Tensor:
    return _drawn(torch.softmax(logits, -1, dtype=torch.float32))


def _top_k(logits: torch.Tensor) -> torch.Tensor:
    values, places = logits.topk(TOP_K, -1)
    return places.gather(-1, _drawn(torch.softmax(values, -1, dtype=torch.float32))[:, None])


def _top_p(logits: torch.Tensor) -> torch.Tensor:
    """Sort, keep the most likely tokens that reach TOP_P together, draw one of them."""
    values, places = logits.sort(-1, descending=True)
    probabilities = torch.softmax(values, -1, dtype=torch.float32)
    before = probabilities.cumsum(-1) - probabilities
    return places.gather(-1, _drawn(probabilities.masked_fill(before > TOP_P, 0.0))[:, None])


#: op -> [sequences, vocabulary] -> a token of every sequence.
SAMPLERS: dict[str, Choose] = {
    "greedy": lambda logits: logits.argmax(-1),
    "sample": _sample,
    "top_k": _top_k,
    "top_p": _top_p,
}
