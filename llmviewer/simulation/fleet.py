"""The servers that answer requests: pools of equal replicas, and the routers that choose one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.serving.scheduling import SCHEDULERS, Scheduler
from llmviewer.simulation.cache import Hits, hits_of
from llmviewer.simulation.prices import Prices, Room
from llmviewer.simulation.replica import ENDLESS, Replica
from llmviewer.simulation.requests import Whole
from llmviewer.simulation.tiers import Tier


class Router(Protocol):
    """A policy that sees a request and the state of the replicas when it arrives.

    waits: whether it looks at the replicas, which must then have run up to the arrival.
    """

    waits: bool

    def choose(self, request: int, prefixes: Sequence[int], replicas: Sequence[Replica]) -> int:
        """Index of the replica for a request whose prompt has these prefixes."""


@dataclass(slots=True)
class RoundRobin:
    """Each replica in turn."""

    waits: bool = False
    _next: int = 0

    def choose(self, request: int, prefixes: Sequence[int], replicas: Sequence[Replica]) -> int:
        """The replica after the one chosen last."""
        chosen, self._next = self._next, (self._next + 1) % len(replicas)
        return chosen


def load_of(replica: Replica) -> int:
    """Requests that a replica runs or holds in its queue."""
    return replica.beside + len(replica.running) + len(replica.waiting) + len(replica.inbox)


@dataclass(slots=True)
class LeastLoaded:
    """The replica with the fewest requests, waiting ones included."""

    waits: bool = True

    def choose(self, request: int, prefixes: Sequence[int], replicas: Sequence[Replica]) -> int:
        """The first of the replicas with the fewest requests."""
        loads = [load_of(replica) for replica in replicas]
        return loads.index(min(loads))


@dataclass(slots=True)
class PrefixAware:
    """The replica that stores the longest part of the prompt, unless it is much busier than the least loaded one.

    The rule of SGLang's router: by cache while loads differ by at most `most_more` requests and by at most the factor
    `most_times`, otherwise by load (https://github.com/sgl-project/sglang/tree/main/sgl-router, cache_aware policy:
    balance_abs_threshold 64, balance_rel_threshold 1.5).
    """

    waits: bool = True
    most_more: int = 64
    most_times: float = 1.5
    _fallback: LeastLoaded = field(default_factory=LeastLoaded)

    def choose(self, request: int, prefixes: Sequence[int], replicas: Sequence[Replica]) -> int:
        """The replica with the most stored prefixes; of equal ones, the least loaded."""
        loads = [load_of(replica) for replica in replicas]
        if max(loads) - min(loads) > self.most_more and max(loads) > self.most_times * min(loads):
            return self._fallback.choose(request, prefixes, replicas)
        stored = [replica.pool.find(prefixes, ENDLESS)[0] for replica in replicas]
        return min(range(len(replicas)), key=lambda one: (-stored[one], loads[one]))


#: Router of replicas, and of ranks: engines that distribute requests to them count those of each
#: (https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/, Internal Load Balancing).
USUAL_ROUTER, ROUTER_OF_RANKS = "round-robin", "least-loaded"
#: Value of `--router` -> router.
ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}


@frozen
class Pool:
    """Equal replicas behind a router.

    max_context: longest request in tokens, prompt and output.  max_prompt: longest prompt.  host_s: time of the host
    before a request reaches the scheduler [s].  devices: of one replica.  ranks: replicas that share experts, and step
    together.  stages: pipeline stages of a replica.  kv_cache: which prompts are found in it.
    tiers: of its cache behind the device, the fastest first.
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
    ranks: int = 1
    stages: int = 1
    kv_cache: KvCache = DEFAULT_KV_CACHE
    tiers: tuple[Tier, ...] = ()

    def hits(self, prompts: Whole) -> Hits:
        """The hits of prompts of these lengths in the cache of a replica."""
        return hits_of(self.kv_cache, self.room.block_tokens, prompts)


@frozen
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

    def with_policy(self, policy: str) -> Fleet:
        """The fleet with this order of the queue.  Raises UserError for one that its engine does not have."""
        scheduler = self.prefill.scheduler
        if policy not in scheduler.policies:
            raise UserError(
                f"schedule_policy is {policy}, which the scheduler of {scheduler.name} does not have; "
                f"allowed: {', '.join(scheduler.policies)}"
            )
        return replace(self, prefill=replace(self.prefill, scheduler=replace(scheduler, policy=policy)))

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
