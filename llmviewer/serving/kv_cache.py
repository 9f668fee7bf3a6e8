"""How an engine stores the KV cache of a sequence: pages, reservations, prefix hits and eviction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import State
from llmviewer.core.workload import kept_tokens, whole_tokens


@frozen
class KvCache:
    """KV-cache policy; by default without pages, reservations, prefix hits and eviction.

    block_size: tokens of a page; a sequence occupies whole pages.  reserve: tokens reserved for every sequence when it
    starts, inf: the model's maximum context.  kept: fraction of the cached tokens that eviction leaves.  limited:
    layers keep at most a number of tokens each, by a graph pass.  hit_rate: fraction of every prompt found in the
    cache.  shared: the prefix is stored once for the whole batch.  cascade: it is also read once, by a kernel of its
    own.  growth: factor between the sizes of reservations, 1 for any size.  fragmented: share of the cache's memory
    between reservations that no further one fits into.
    """

    block_size: float = 1.0
    reserve: float = 0.0
    kept: float = 1.0
    limited: bool = False
    hit_rate: float = 0.0
    shared: bool = False
    cascade: bool = False
    growth: float = 1.0
    fragmented: float = 0.0

    @property
    def unpaged(self) -> KvCache:
        """This policy without pages, reservations and what is lost between them."""
        return replace(self, block_size=1.0, reserve=0.0, growth=1.0, fragmented=0.0)

    @property
    def reserves(self) -> bool:
        """Whether sequences have contiguous reservations."""
        return self.reserve > 0.0 or self.growth > 1.0

    @property
    def evicts(self) -> bool:
        """Whether tokens leave the cache."""
        return self.kept < 1.0 or self.limited

    def prefix_hit(self, prompt: Count) -> Count:
        """Prompt tokens that need no prefill: whole pages of hit_rate, never the last token (it needs logits)."""
        if not self.hit_rate:
            return 0.0
        tokens = np.minimum(whole_tokens(prompt * self.hit_rate), prompt - 1.0)
        return np.floor(tokens / self.block_size) * self.block_size

    def allocated_tokens(self, state: State, context: Count, prefix: Count) -> tuple[Count, Count]:
        """Tokens of `state` allocated for one sequence of `context` tokens, and for the prefix that all share.

        Pages of b tokens: ceil(tokens / b).  A window of w tokens may start inside one page and end inside another, so
        it spans at most ceil((w - 1) / b) + 1 pages.
        """
        block = self.block_size
        tokens = np.maximum(kept_tokens(context, self.kept), self.reserve)
        if self.growth > 1.0:
            steps = np.ceil(np.round(np.log(np.maximum(tokens, 1.0)) / np.log(self.growth), 9))
            tokens = self.growth**steps
        pages = np.ceil(tokens / block)
        most = np.ceil((state.window - 1.0) / block) + 1.0
        allocated = np.minimum(pages, most)
        if not self.shared:
            return allocated * block, 0.0
        own = np.minimum(pages - prefix / block, allocated)
        return own * block, (allocated - own) * block

    def resident_bytes(self, state: State, context: Count, prefix: Count) -> tuple[Count, Count]:
        """Bytes of one sequence, and of the prefix that all share.  Recurrent state is never shared."""
        if self == DEFAULT_KV_CACHE:
            return state.resident_bytes(context), 0.0
        own, shared = self.allocated_tokens(state, context, prefix)
        usable = 1.0 - self.fragmented
        return state.bytes_of(own) / usable, state.per_token * shared * state.dtype.bytes / usable


DEFAULT_KV_CACHE = KvCache()
