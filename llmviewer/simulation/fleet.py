"""The servers that answer requests: pools of equal replicas behind a router, aggregated or split by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.simulation.cache import Hits, hits_of
from llmviewer.simulation.prices import Prices, Room
from llmviewer.simulation.requests import Whole
from llmviewer.simulation.routing import RoundRobin, Router
from llmviewer.simulation.scheduling import SCHEDULERS, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal replicas behind a router.

    max_context: longest request in tokens, prompt and output.  max_prompt: longest prompt.  host_s: time of the host
    before a request reaches the scheduler [s].  devices: of one replica.  kv_cache: which prompts are found in it.
    """

    prices: Prices
    room: Room
    scheduler: Scheduler = SCHEDULERS["vllm"]
    replicas: int = 1
    router: Callable[[], Router] = RoundRobin
    max_context: float = float("inf")
    max_prompt: float = float("inf")
    host_s: float = 0.0
    devices: int = 1
    kv_cache: KvCache = DEFAULT_KV_CACHE

    def hits(self, prompts: Whole) -> Hits:
        """The hits of prompts of these lengths in the cache of a replica."""
        return hits_of(self.kv_cache, self.room.block_tokens, prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Pools that answer requests.

    decode: if set, `prefill` computes prompts and first tokens, and `decode` the other tokens.  transfer_s: prompt
    tokens -> time to move their KV cache between pools [s]; as many transfers run at once as the smaller pool has
    replicas.
    """

    prefill: Pool
    decode: Pool | None = None
    transfer_s: Callable[[int], float] = lambda tokens: 0.0

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of the fleet."""
        return (self.prefill,) if self.decode is None else (self.prefill, self.decode)

    def times(self, copies: int) -> Fleet:
        """The fleet with `copies` times as many replicas in every pool."""
        first, then = self.prefill, self.decode
        return replace(
            self,
            prefill=replace(first, replicas=first.replicas * copies),
            decode=None if then is None else replace(then, replicas=then.replicas * copies),
        )

    @property
    def answering(self) -> Pool:
        """The pool that generates all tokens but the first."""
        return self.decode or self.prefill

    @property
    def devices(self) -> int:
        """Devices of all pools."""
        return sum(pool.replicas * pool.devices for pool in self.pools)
