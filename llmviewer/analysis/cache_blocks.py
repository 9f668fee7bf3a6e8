"""Blocks of vLLM's KV cache: how many a request occupies where layers have windows, and how many requests fit.

Layers of one kind form groups of equal size; every block of the pool stores the same number of layers, so that groups
that are not full are padded.  All blocks take the same bytes: a kind with fewer bytes per token stores more tokens in
one.  In hybrids a block has so many tokens that it is at least as large as the state of a recurrent layer, which takes
a block of its own per request.
Sources: https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/kv_cache_utils.py (unify_kv_cache_spec_page_size),
https://github.com/vllm-project/vllm/blob/main/vllm/v1/kv_cache_interface.py (max_memory_usage_bytes),
https://github.com/vllm-project/vllm/blob/main/vllm/platforms/interface.py (_align_hybrid_block_size)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Graph, Place
from llmviewer.layers.indexer import INDEX_CACHE

#: Tokens of a block; of latent attention.
BLOCK_TOKENS, LATENT_BLOCK_TOKENS = 16.0, 64.0
#: Kinds whose numbers of layers differ by less than this factor form one group each.
SIMILAR = 1.25
#: DeepSeek-V4, whose cache has a format of its own: bytes of an entry (448 values of 8 bit, 64 of 16 bit, scales) and
#: of an index key (128 values of 8 bit, a scale), alignment of a page, tokens of a block and of one of a window.
#: Source: groups of a running vLLM, https://github.com/vllm-project/vllm/issues/54703
ENTRY_BYTES, INDEX_BYTES, PAGE_ALIGNMENT = 584.0, 132.0, 576.0
COMPRESSED_TOKENS, WINDOW_TOKENS = 256.0, 64.0
#: Values of its compressed entries per layer and token -> (window of the compressor's state, tokens of its block).
COMPRESSORS = {128.0: (8.0, 4.0), 4.0: (128.0, 8.0)}
#: Name of its compressed entries in the graph.
COMPRESSED = "compressed_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Blocks of short-lived states: each group holds the last `window` tokens in blocks of `tokens`."""

    window: float
    groups: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlocks:
    """The pool's layout on one device.

    layers: layers per block.  groups: window -> groups of layers.  token_bytes: of one layer.  tokens: of a block.
    longer: window -> tokens of a block over `tokens`, where a layer has fewer bytes per token.
    state_groups: groups of recurrent layers, each with one block per request.  states: groups beside those of layers.
    """

    layers: float
    groups: dict[float, float]
    token_bytes: float
    tokens: float
    longer: Mapping[float, float] = field(default_factory=dict)
    state_groups: float = 0.0
    states: tuple[States, ...] = ()

    @property
    def block_bytes(self) -> float:
        """Bytes of one block of the pool."""
        return self.layers * self.token_bytes * self.tokens

    def blocks(self, budget: Count) -> Count:
        """Whole blocks in a budget."""
        return np.floor(budget / self.block_bytes)

    def capacity_tokens(self, budget: Count) -> Count:
        """Tokens that vLLM before 0.20.2 reports for a budget, as if every group stored all of them."""
        groups = sum(self.groups.values()) + self.state_groups + sum(one.groups for one in self.states)
        fewest = min((self.tokens, *(one.tokens for one in self.states)))
        return np.floor(self.blocks(budget) / groups) * fewest

    def blocks_of(self, context: Count, batched_tokens: float) -> Count:
        """Blocks that one request of `context` tokens may occupy.

        A windowed layer keeps window - 1 tokens beside those of the pass, from any place within a block.
        """
        occupied: Count = self.state_groups
        for window, groups in self.groups.items():
            tokens = self.tokens * self.longer.get(window, 1.0)
            occupied = occupied + groups * _blocks(context, window, tokens, batched_tokens)
        for one in self.states:
            occupied = occupied + one.groups * _blocks(context, one.window, one.tokens, batched_tokens)
        return occupied

    def concurrency(self, budget: Count, context: Count, batched_tokens: float) -> Count:
        """Requests of `context` tokens whose caches fit in a budget, as a fraction."""
        return self.blocks(budget) / self.blocks_of(context, batched_tokens)


def _blocks(context: Count, window: float, tokens: float, batched_tokens: float) -> Count:
    """Blocks of one group for one request."""
    if window == np.inf:
        return np.ceil(context / tokens)
    return np.ceil(np.minimum(window - 1.0 + batched_tokens, context) / tokens) + 1.0


def cache_blocks(graph: Graph) -> CacheBlocks | str:
    """The layout of a graph's cache, or why there is none: no cache, recurrent state alone, widths that do not divide
    each other."""
    if any(state.name == COMPRESSED for block in graph.blocks for state in block.states):
        return _compressed_blocks(graph)
    widths: dict[float, float] = {}
    states = [0.0]
    layers: dict[float, float] = {}
    recurrent, latent = 0.0, False
    for block in graph.blocks:
        here = [state for state in block.states if state.place is Place.DEVICE]
        cached = [state for state in here if state.per_token]
        if cached:
            window = float(np.max(cached[0].window))
            width = sum(one.per_token * one.dtype.bytes for one in cached)
            if widths.setdefault(window, width) != width:
                return "layers of one window store keys and values of different widths"
            layers[window] = layers.get(window, 0.0) + block.repeats
            latent = latent or any(one.name == "latent_cache" for one in cached)
        if state := sum(one.per_sequence * one.dtype.bytes for one in here):
            states.append(state)
            recurrent += block.repeats
    if not widths:
        return "no layer stores keys and values of every token"
    widest = max(widths.values())
    if any(widest % width for width in widths.values()):
        return "widths of keys and values do not divide each other, and the engine has no common block for them"
    counts = [*layers.values(), *([recurrent] if recurrent else [])]
    fewest, most = min(counts), max(counts)
    size = most if most < fewest * SIMILAR else fewest
    least = LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS
    return CacheBlocks(
        layers=size,
        groups={window: float(np.ceil(count / size)) for window, count in layers.items()},
        token_bytes=widest,
        tokens=least * max(1.0, float(np.ceil(max(states) / (least * widest)))),
        longer={window: widest / width for window, width in widths.items() if width < widest},
        state_groups=float(np.ceil(recurrent / size)),
    )


def _compressed_blocks(graph: Graph) -> CacheBlocks:
    """The layout of DeepSeek-V4: compressed entries and index keys of all layers in one group, the last entries and the
    compressors' states in groups of their own, and room in every block for a page of each size.

    A group of windows has so few layers that it fits the rooms of the compressed ones, or one more.
    """
    layers: dict[float, float] = {}
    windowed, window, width, has_index = 0.0, 0.0, 1.0, False
    for block in graph.blocks:
        values = {state.name: float(np.max(state.per_token)) for state in block.states}
        has_index = has_index or INDEX_CACHE in values
        for state in block.states:
            if state.name == "latent_cache":
                windowed, window, width = windowed + block.repeats, float(np.max(state.window)), values[state.name]
        if COMPRESSED in values:
            layers[values[COMPRESSED]] = layers.get(values[COMPRESSED], 0.0) + block.repeats
    entries = {WINDOW_TOKENS, *(COMPRESSED_TOKENS * values / width for values in layers)}
    pages = {_page(count * ENTRY_BYTES) for count in entries}
    pages |= {_page(WINDOW_TOKENS * INDEX_BYTES)} if has_index else set()
    groups = float(np.ceil(windowed / (max(layers.values()) + 1.0)))
    compressors = (COMPRESSORS[values] for values in layers if values in COMPRESSORS)
    return CacheBlocks(
        layers=max(*layers.values(), float(np.ceil(windowed / groups))),
        groups={np.inf: 1.0},
        token_bytes=sum(pages) / COMPRESSED_TOKENS,
        tokens=COMPRESSED_TOKENS,
        states=(
            States(window=window, groups=groups, tokens=WINDOW_TOKENS),
            *(States(window=last, groups=1.0, tokens=tokens) for last, tokens in compressors),
        ),
    )


def _page(size: float) -> float:
    """Bytes of an aligned page."""
    return float(np.ceil(size / PAGE_ALIGNMENT) * PAGE_ALIGNMENT)
