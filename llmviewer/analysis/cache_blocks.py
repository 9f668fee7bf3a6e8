"""Blocks of vLLM's KV cache: how many a request occupies where layers have windows, and how many requests fit.

Layers of one kind form groups of equal size; every block of the pool stores the same number of layers, so that groups
that are not full are padded.  Source: https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py
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
    """

    layers: float
    groups: dict[float, float]
    token_bytes: float
    tokens: float

    @property
    def block_bytes(self) -> float:
        """Bytes of one block of the pool."""
        return self.layers * self.token_bytes * self.tokens

    def blocks(self, budget: Count) -> Count:
        """Whole blocks in a budget."""
        return np.floor(budget / self.block_bytes)

    def capacity_tokens(self, budget: Count) -> Count:
        """Tokens that engines report for a budget: every group stores all of them."""
        return np.floor(self.blocks(budget) / sum(self.groups.values())) * self.tokens

    def blocks_of(self, context: Count, batched_tokens: float) -> Count:
        """Blocks that one request of `context` tokens may occupy.

        A windowed layer keeps window - 1 tokens beside those of the pass, from any place within a block.
        """
        occupied: Count = 0.0
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
    """The layout of a graph's cache; None if it has none, recurrent state, or layers of different widths."""
    states = [(block.repeats, state) for block in graph.blocks for state in block.states if state.place is Place.DEVICE]
    if not states or any(state.per_sequence for _, state in states):
        return None
    bytes_of_layer: dict[float, set[float]] = {}
    layers: dict[float, float] = {}
    for block in graph.blocks:
        own = [state for state in block.states if state.place is Place.DEVICE]
        if own:
            window = float(np.max(own[0].window))
            bytes_of_layer.setdefault(window, set()).add(sum(s.per_token * s.dtype.bytes for s in own))
            layers[window] = layers.get(window, 0.0) + block.repeats
    widths = set().union(*bytes_of_layer.values())
    if len(widths) > 1:
        return None
    fewest, most = min(layers.values()), max(layers.values())
    size = most if most < fewest * SIMILAR else fewest
    latent = any(state.name == "latent_cache" for _, state in states)
    return CacheBlocks(
        layers=size,
        groups={window: float(np.ceil(count / size)) for window, count in layers.items()},
        token_bytes=widths.pop(),
        tokens=LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS,
    )
