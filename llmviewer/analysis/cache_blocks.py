"""Blocks of vLLM's KV cache: how many a request occupies where layers have windows, and how many requests fit.

Layers of one kind form groups of equal size; every block of the pool stores the same number of layers, so that groups
that are not full are padded.  In hybrids a block has so many tokens that it is at least as large as the state of a
recurrent layer, which takes a block of its own per request.
Sources: https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py,
https://github.com/vllm-project/vllm/blob/main/vllm/platforms/interface.py (_align_hybrid_block_size)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Graph, Place

#: Tokens of a block; of latent attention.
BLOCK_TOKENS, LATENT_BLOCK_TOKENS = 16.0, 64.0
#: Kinds whose numbers of layers differ by less than this factor form one group each.
SIMILAR = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlocks:
    """The pool's layout on one device.

    layers: layers per block.  groups: window -> groups of layers.  token_bytes: of one layer.  tokens: of a block.
    state_groups: groups of recurrent layers, each with one block per request.
    """

    layers: float
    groups: dict[float, float]
    token_bytes: float
    tokens: float
    state_groups: float = 0.0

    @property
    def block_bytes(self) -> float:
        """Bytes of one block of the pool."""
        return self.layers * self.token_bytes * self.tokens

    def blocks(self, budget: Count) -> Count:
        """Whole blocks in a budget."""
        return np.floor(budget / self.block_bytes)

    def capacity_tokens(self, budget: Count) -> Count:
        """Tokens that engines report for a budget: every group stores all of them."""
        return np.floor(self.blocks(budget) / (sum(self.groups.values()) + self.state_groups)) * self.tokens

    def blocks_of(self, context: Count, batched_tokens: float) -> Count:
        """Blocks that one request of `context` tokens may occupy.

        A windowed layer keeps window - 1 tokens beside those of the pass, from any place within a block.
        """
        occupied: Count = self.state_groups
        for window, groups in self.groups.items():
            if window == np.inf:
                own = np.ceil(context / self.tokens)
            else:
                own = np.ceil(np.minimum(window - 1.0 + batched_tokens, context) / self.tokens) + 1.0
            occupied = occupied + groups * own
        return occupied

    def concurrency(self, budget: Count, context: Count, batched_tokens: float) -> Count:
        """Requests of `context` tokens whose caches fit in a budget, as a fraction."""
        return self.blocks(budget) / self.blocks_of(context, batched_tokens)


def cache_blocks(graph: Graph) -> CacheBlocks | None:
    """The layout of a graph's cache; None if it has none, recurrent state alone, or layers of different widths."""
    widths, states = set(), [0.0]
    layers: dict[float, float] = {}
    recurrent, latent = 0.0, False
    for block in graph.blocks:
        here = [state for state in block.states if state.place is Place.DEVICE]
        cached = [state for state in here if state.per_token]
        if cached:
            window = float(np.max(cached[0].window))
            widths.add(sum(one.per_token * one.dtype.bytes for one in cached))
            layers[window] = layers.get(window, 0.0) + block.repeats
            latent = latent or any(one.name == "latent_cache" for one in cached)
        if state := sum(one.per_sequence * one.dtype.bytes for one in here):
            states.append(state)
            recurrent += block.repeats
    if len(widths) != 1:
        return None
    (width,) = widths
    counts = [*layers.values(), *([recurrent] if recurrent else [])]
    fewest, most = min(counts), max(counts)
    size = most if most < fewest * SIMILAR else fewest
    least = LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS
    return CacheBlocks(
        layers=size,
        groups={window: float(np.ceil(count / size)) for window, count in layers.items()},
        token_bytes=width,
        tokens=least * max(1.0, float(np.ceil(max(states) / (least * width)))),
        state_groups=float(np.ceil(recurrent / size)),
    )
