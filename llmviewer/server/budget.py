"""A budget of computing time per client: a bucket that fills with time and that computing empties."""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Computing time that a client may use at once, and what it gets back per second [s, s/s].
BURST_S, REFILL = 120.0, 0.25
#: Clients that are remembered; of more, the one that has been quiet for longest is forgotten.
MOST_CLIENTS = 10_000


#: Bits of an IPv6 address that one subscriber has to himself.
SUBSCRIBER_BITS = 64


def client_of(environ: Mapping[str, Any]) -> str:
    """The client of a request, by its address."""
    return client_at(str(environ.get("REMOTE_ADDR", "")))


def client_at(text: str) -> str:
    """The client at an address: the address itself, of IPv6 the network of its subscriber."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if address.version == 4:
        return text
    return str(ipaddress.ip_network((address, SUBSCRIBER_BITS), strict=False))


@dataclass(slots=True)
class _Bucket:
    """Computing time that is left at a moment [s]; below 0 after a request that took more than was left."""

    left_s: float
    at_s: float


class Budget:
    """Computing time of the clients of one process; a client is an address and nothing else is known of it."""

    def __init__(
        self, burst_s: float = BURST_S, refill: float = REFILL, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst_s, self._refill, self._clock = burst_s, refill, clock
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def wait_s(self, client: str) -> int:
        """Whole seconds until a client may compute again; 0 if it may now."""
        with self._lock:
            left = self._bucket(client).left_s
        return 0 if left > 0.0 else max(math.ceil(-left / self._refill), 1)

    def charge(self, client: str, seconds: float) -> None:
        """Take computing time [s] from a client."""
        with self._lock:
            self._bucket(client).left_s -= seconds

    def _bucket(self, client: str) -> _Bucket:
        """The bucket of a client, filled up to now."""
        now = self._clock()
        found = self._clients.pop(client, None) or _Bucket(self._burst_s, now)
        found.left_s = min(found.left_s + (now - found.at_s) * self._refill, self._burst_s)
        found.at_s = now
        self._clients[client] = found
        while len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
        return found
