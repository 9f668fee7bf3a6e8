"""How an engine keeps the cache of a sequence: pages, reservations, a prefix found in it, tokens evicted from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import State
from llmviewer.core.workload import kept_tokens, whole_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """How the cache is kept; the defaults are one token after another, nothing spare, nothing found, nothing evicted.

    block_size: tokens of a page; a sequence holds whole pages.  reserve: tokens set aside for every sequence at once,
    inf: the model's maximum context.  kept: share of the cached tokens that eviction leaves.  hit_rate: share of every
    prompt found in the cache.  shared: what is found is stored once for the whole batch.
    """

    block_size: float = 1.0
    reserve: float = 0.0
    kept: float = 1.0
    hit_rate: float = 0.0
    shared: bool = False

    @property
    def exact(self) -> KvCache:
        """The same tokens without a page or a reservation around them."""
        return self if (self.block_size, self.reserve) == (1.0, 0.0) else replace(self, block_size=1.0, reserve=0.0)

    def found(self, prompt: Count) -> Count:
        """Tokens of a prompt that need no prefill: whole pages of hit_rate of it, the last token never among them (its
        logits are asked for)."""
        if not self.hit_rate:
            return 0.0
        tokens = np.minimum(whole_tokens(prompt * self.hit_rate), prompt - 1.0)
        return np.floor(tokens / self.block_size) * self.block_size

    def held(self, state: State, context: Count, prefix: Count) -> tuple[Count, Count]:
        """Tokens of `state` set aside for one sequence of `context` tokens, and for the shared prefix of all of them.

        Pages of b tokens: ceil(tokens / b).  A window of w tokens may begin inside a page and end inside another: at
        its worst moment it lies on ceil((w - 1) / b) + 1 of them.
        """
        block = self.block_size
        pages = np.ceil(np.maximum(kept_tokens(context, self.kept), self.reserve) / block)
        most = np.ceil((state.window - 1.0) / block) + 1.0
        everything = np.minimum(pages, most)
        if not self.shared:
            return everything * block, 0.0
        own = np.minimum(pages - prefix / block, everything)
        return own * block, (everything - own) * block

    def resident_bytes(self, state: State, context: Count, prefix: Count) -> tuple[Count, Count]:
        """Bytes of one sequence, and of the prefix that all share.  Recurrent state is one sequence's own."""
        if self == PLAIN:
            return state.resident_bytes(context), 0.0
        own, shared = self.held(state, context, prefix)
        return state.bytes_of(own), state.per_token * shared * state.dtype.bytes


PLAIN = KvCache()
