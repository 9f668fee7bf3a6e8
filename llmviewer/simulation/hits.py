"""Tokens of prompts that `--prefix-cache` says are found in the KV cache of a pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.serving.kv_cache import KvCache
from llmviewer.simulation.requests import Whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hits:
    """Hits of requests, shape (requests,).

    tokens: of each prompt that need no prefill.  blocks: of each that all requests share, so that a request occupies
    them in no cache of its own; whole blocks alone are shared.
    """

    tokens: Whole
    blocks: Whole

    @property
    def common(self) -> int:
        """Blocks that hold the shared prefix, once: those of the longest one."""
        return int(np.max(self.blocks, initial=0))


def hits_of(cache: KvCache, block_tokens: int, prompts: Whole) -> Hits:
    """Hits of prompts of these lengths, by the rule of `analyze` (`KvCache.prefix_hit`)."""
    none = np.zeros_like(prompts)
    tokens = none + np.asarray(cache.prefix_hit(prompts.astype(np.float64)), dtype=np.int64)
    return Hits(tokens=tokens, blocks=tokens // block_tokens if cache.shared else none)
