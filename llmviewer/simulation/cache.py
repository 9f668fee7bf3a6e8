"""Blocks of a replica's KV cache: a pool with reference counts of shared prefixes, evicted least recently used first.

Prefixes are those of a trace's hashes; `Hits` are the share of each prompt that --prefix-cache says is found.

As vLLM's block pool: blocks whose last reader has ended keep their content at the tail of the queue of free blocks, and
allocation takes them from its head (https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/block_pool.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmviewer.serving.kv_cache import KvCache
from llmviewer.simulation.requests import Whole

#: Name of free blocks in the queue whose content no later request can use.
NAMELESS = -1


class BlockPool:
    """Free and shared blocks of one replica.

    A prefix id names `width` consecutive blocks with the same content wherever it occurs.  free: blocks that can be
    allocated, those of unused prefixes included.
    """

    __slots__ = ("_queue", "_readers", "_stamp", "free", "total", "width")

    def __init__(self, total: int, width: int = 0) -> None:
        self.total = self.free = total
        self.width = width
        self._readers: dict[int, int] = {}
        self._stamp: dict[int, int] = {}
        self._queue: deque[tuple[int, int]] = deque([(NAMELESS, total)])

    def matched(self, prefixes: Sequence[int], most: int) -> int:
        """Number of leading prefixes whose blocks are stored, at most `most`."""
        readers, count = self._readers, 0
        for name in prefixes[:most]:
            if name not in readers:
                break
            count += 1
        return count

    def needed(self, prefixes: Sequence[int]) -> int:
        """Free blocks that become occupied when these stored prefixes get a reader."""
        readers = self._readers
        return self.width * sum(not readers[name] for name in prefixes)

    def read(self, prefixes: Sequence[int]) -> None:
        """Add a reader to stored prefixes."""
        readers = self._readers
        for name in prefixes:
            if not readers[name]:
                self.free -= self.width
                self._stamp[name] += 1
            readers[name] += 1

    def store(self, prefixes: Sequence[int]) -> list[int]:
        """Name blocks that a request has been given; returns the names that are new, which it now reads."""
        readers = self._readers
        new = []
        for name in prefixes:
            if name not in readers:
                readers[name] = 1
                self._stamp[name] = 0
                new.append(name)
        return new

    def take(self, blocks: int) -> None:
        """Allocate blocks; of the free ones, the content that was used least recently is lost."""
        self.free -= blocks
        if not self.width:
            return
        queue, stamp = self._queue, self._stamp
        while blocks > 0:
            name, count = queue.popleft()
            if name == NAMELESS:
                if count > blocks:
                    queue.appendleft((NAMELESS, count - blocks))
                blocks -= count
            elif stamp.get(name) == count:  # still unused since it was queued
                del stamp[name], self._readers[name]
                if self.width > blocks:
                    queue.appendleft((NAMELESS, self.width - blocks))
                blocks -= self.width

    def give_back(self, blocks: int, prefixes: Sequence[int] = ()) -> None:
        """Free a request's own blocks, and those of the prefixes that it was the last to read."""
        self.free += blocks
        if not self.width:
            return
        queue, readers = self._queue, self._readers
        if blocks:
            queue.append((NAMELESS, blocks))
        for name in reversed(prefixes):
            readers[name] -= 1
            if not readers[name]:
                self.free += self.width
                self._stamp[name] += 1
                queue.append((name, self._stamp[name]))


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
