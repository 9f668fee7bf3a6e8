"""Blocks of a replica's KV cache: a pool with reference counts of shared prefixes, evicted least recently used first.

Prefixes are those of a trace's hashes, or `Chains` of sessions; `Hits` are the share of each prompt that --prefix-cache
says is found.

As vLLM's block pool: blocks whose last reader has ended keep their content at the tail of the queue of free blocks, and
allocation takes them from its head (https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/block_pool.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.serving.kv_cache import KvCache
from llmviewer.simulation.requests import Whole
from llmviewer.simulation.tiers import Kept, Tier

#: Name of free blocks in the queue whose content no later request can use.
NAMELESS = -1


class BlockPool:
    """Free and shared blocks of one replica.

    A prefix id names `width` consecutive blocks with the same content wherever it occurs.  free: blocks that can be
    allocated, those of unused prefixes included.  taken: blocks that were ever allocated.  names_answers: whether
    blocks of answers have names too.  tiers: where lost blocks are still found.
    """

    __slots__ = ("_queue", "_readers", "_stamp", "_stored", "free", "taken", "tiers", "total", "width")
    names_answers = False

    def __init__(self, total: int, width: int = 0, tiers: Sequence[Tier] = ()) -> None:
        self.tiers = [Kept(one) for one in tiers]
        self.total = self.free = total
        self.taken, self.width = 0, width
        self._readers: dict[int, int] = {}
        self._stored: dict[int, int] = {}
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

    def find(self, prefixes: Sequence[int], most: int) -> tuple[int, list[int]]:
        """Leading blocks that are stored, at most `most`, and their names."""
        count = self.matched(prefixes, most // self.width) if self.width else 0
        return count * self.width, list(prefixes[:count])

    def beyond(self, prefixes: Sequence[int], found: int, most: int) -> list[int]:
        """Blocks behind those found on the device, at most `most` with them, that each tier holds."""
        counts = []
        for tier in self.tiers:
            reached = self._reached(tier, prefixes, found, most)
            counts.append(reached - found)
            found = reached
        return counts

    def _reached(self, tier: Kept, prefixes: Sequence[int], found: int, most: int) -> int:
        """Leading blocks that are stored, where a tier goes on behind those found."""
        for name in prefixes[found // self.width : most // self.width]:
            if tier.stored(name) < self.width:
                break
            found += self.width
        return found

    def needed(self, names: Sequence[int]) -> int:
        """Free blocks that become occupied when these stored prefixes get a reader."""
        readers, stored = self._readers, self._stored
        return sum(stored[name] for name in names if not readers[name])

    def read(self, names: Sequence[int]) -> None:
        """Add a reader to stored prefixes."""
        readers = self._readers
        for name in names:
            if not readers[name]:
                self.free -= self._stored[name]
                self._stamp[name] += 1
            readers[name] += 1

    def store(self, prefixes: Sequence[int]) -> list[int]:
        """Name blocks that a request has been given; returns the names that are new, which it now reads."""
        new = [name for name in prefixes if name not in self._readers]
        for name in new:
            self._begin(name, self.width)
        return new

    def name(self, prefixes: Sequence[int], names: list[int], whole: int) -> tuple[int, list[int]]:
        """Name the first `whole` blocks of a request as far as they have no name yet.

        names: those that it reads.  Returns the number of its own blocks that now have a name, and all that it reads.
        """
        new = self.store(prefixes[len(names) : whole // self.width])
        return self.width * len(new), names + new

    def _begin(self, name: int, blocks: int) -> None:
        """Give so many occupied blocks a name that is new, with a reader."""
        self._readers[name], self._stamp[name], self._stored[name] = 1, 0, blocks

    def take(self, blocks: int) -> None:
        """Allocate blocks; of the free ones, the content that was used least recently is lost."""
        self.free -= blocks
        self.taken += blocks
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
                blocks -= self._lose(name, blocks)

    def return_first(self, blocks: int) -> None:
        """Free blocks that are about to be taken again: no other is taken before them."""
        self.free += blocks
        self.taken -= blocks
        if self.width and blocks:
            self._queue.appendleft((NAMELESS, blocks))

    def _lose(self, name: int, most: int) -> int:
        """Forget an unused name for the sake of `most` blocks; returns how many of these it gives."""
        del self._stamp[name], self._readers[name]
        stored = self._stored.pop(name)
        if stored > most:
            self._queue.appendleft((NAMELESS, stored - most))
        return min(stored, most)

    def give_back(self, blocks: int, names: Sequence[int] = ()) -> None:
        """Free a request's own blocks, and those of the prefixes that it was the last to read."""
        self.free += blocks
        if not self.width:
            return
        queue, readers = self._queue, self._readers
        if blocks:
            queue.append((NAMELESS, blocks))
        for name in reversed(names):
            for tier in self.tiers:
                tier.keep(name, self._stored[name])
            readers[name] -= 1
            if not readers[name]:
                self.free += self._stored[name]
                self._stamp[name] += 1
                queue.append((name, self._stamp[name]))


class Chains(BlockPool):
    """Blocks of sessions: a name is that of a chain of blocks, of which the first ones are stored.

    The prefixes of a request are a path: the chain of its system prompt, the number of its blocks, and the chain of its
    session, which goes on behind it and holds answers too.  An engine frees the last blocks of a sequence first: what
    is left of a chain is its beginning, and a system prompt outlives the sessions that read it.  A prompt is computed
    before another begins, so no two compute the same blocks.
    """

    __slots__ = ()
    names_answers = True

    def find(self, prefixes: Sequence[int], most: int) -> tuple[int, list[int]]:
        """Leading blocks that are stored, and the names of the chains that hold them; never all of a prompt."""
        system, whole, session = prefixes
        found = self._stored.get(system, 0)
        names = [system] if found else []
        if found == whole and (more := self._stored.get(session, 0)):
            found += more
            names.append(session)
        return found, names

    def _reached(self, tier: Kept, prefixes: Sequence[int], found: int, most: int) -> int:
        """Leading blocks that are stored, where a tier goes on behind those found."""
        system, whole, session = prefixes
        if found < whole:
            found = max(found, min(tier.stored(system), whole))
        if found >= whole:
            found = max(found, whole + tier.stored(session))
        return min(found, most)

    def name(self, prefixes: Sequence[int], names: list[int], whole: int) -> tuple[int, list[int]]:
        """Name the first `whole` blocks of a request as far as they have no name yet, in its two chains."""
        system, before, session = prefixes
        named = 0
        for chain, blocks in ((system, min(before, whole)), (session, whole - before)):
            if chain in names:
                new = max(blocks - self._stored[chain], 0)
                self._stored[chain] += new
                named += new
            elif blocks > 0:
                self._begin(chain, blocks)
                named += blocks
                names = [*names, chain]
        return named, names

    def _lose(self, name: int, most: int) -> int:
        """Forget the last blocks of an unused chain, at most `most`; returns their number."""
        stored = self._stored[name]
        if stored <= most:
            return super()._lose(name, most)
        self._stored[name] = stored - most
        self._queue.appendleft((name, self._stamp[name]))
        return most


@frozen(eq=False)
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
