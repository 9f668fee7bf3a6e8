"""Routers: which replica of a pool gets the next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llmviewer.simulation.replica import Replica


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
    return len(replica.running) + len(replica.waiting) + len(replica.inbox)


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
        stored = [replica.pool.matched(prefixes, len(prefixes)) for replica in replicas]
        return min(range(len(replicas)), key=lambda one: (-stored[one], loads[one]))


#: Value of `--router` -> router.
ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}
