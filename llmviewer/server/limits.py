"""Limits of what a request may ask of a server, each with a refusal of one line, and computing time per client."""

from __future__ import annotations

import ctypes
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from llmviewer.core.errors import UserError

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


Found = TypeVar("Found")

#: Longest body of a request [byte], entries of one list, and characters of one text.
MAX_BODY_BYTES = 2**20
MAX_LIST = 2000
MAX_TEXT = 20_000
#: Points of a sweep or a map, configurations that make them, and those that are shown side by side.
MAX_POINTS = 10_000
MAX_CONFIGURATIONS = 100
MAX_COMPARED = 12
#: Requests of all replications of a simulation, users of a closed loop, copies of a server, and searches of a sizing.
MAX_REQUESTS = 100_000
MAX_REPLICAS = 64
MAX_CHIPS = 12
MAX_TRIED = 64
#: Calls whose lists make points.
OF_POINTS = ("sweep", "crossover", "compare")
#: Longest time of one request [s].
TIME_LIMIT_S = 60.0
#: Sizes of the workload, whose lists are points of a sweep.
SIZES = ("batch_size", "input_len", "output_len", "context")


class OverTimeError(BaseException):
    """Raised in the thread of a request that takes too long; no handler of other errors may catch it."""


_LOCKS = threading.local()


def uninterrupted() -> AbstractContextManager[Any]:
    """The context of a part of a request that the time limit ends only afterwards.

    For calls of libraries in C that do not expect an exception between two of their steps, as pandas' JSON writer,
    which then reads memory that is not there.
    """
    own: AbstractContextManager[Any] = getattr(_LOCKS, "own", nullcontext())
    return own


def within(seconds: float, function: Callable[[], Found]) -> Found:
    """The value of a function that may run for a time [s].  Raises OverTimeError in it when the time is over.

    The exception is raised between two steps of Python; a single operation on an array is not interrupted.
    """
    thread, lock, state = threading.get_ident(), threading.Lock(), {"done": False}
    _LOCKS.own = lock

    def stop() -> None:
        with lock:
            if not state["done"]:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(OverTimeError))

    clock = threading.Timer(seconds, stop)
    clock.daemon = True
    clock.start()
    try:
        return function()
    finally:
        clock.cancel()
        _LOCKS.own = nullcontext()
        with lock:  # from here on `stop` does nothing, and what it may have asked for is withdrawn
            state["done"] = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)


def check(call: str, given: Mapping[str, Any]) -> None:
    """Raise UserError for a request that asks for too much."""
    for name, value in given.items():
        _check_lengths(name, value)
    if call in OF_POINTS:
        _check_points(call, given)
    if call in ("simulate", "size"):
        _check_load(call, given)
    if call == "size":
        _check_sizing(given)


def _check_lengths(name: str, value: Any) -> None:
    for one in _values(value):
        if isinstance(one, str) and len(one) > MAX_TEXT:
            raise UserError(f"{name} has a text of {len(one):,} characters; allowed: at most {MAX_TEXT:,}")
        if isinstance(one, list) and len(one) > MAX_LIST and name not in ("model", "hardware"):
            raise UserError(f"{name} has {len(one):,} entries; allowed: at most {MAX_LIST:,}")


def _values(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    for one in inner:
        yield from _values(one)


def _check_points(call: str, given: Mapping[str, Any]) -> None:
    lengths = {name: len(value) for name, value in given.items() if isinstance(value, list) and name != "ignore_fields"}
    configurations = math.prod(count for name, count in lengths.items() if name not in SIZES)
    most = MAX_COMPARED if call == "compare" else MAX_CONFIGURATIONS
    if configurations > most:
        raise UserError(f"the lists make {configurations:,} configurations; allowed here: at most {most:,}")
    points = math.prod(lengths.values())
    if call == "compare" and given.get("hardware") in ("all", ["all"]):
        raise UserError(f"hardware is all; compare takes at most {most} chips here: name them")
    if points > MAX_POINTS:
        raise UserError(f"the lists make {points:,} points; allowed here: at most {MAX_POINTS:,}")


def _check_load(call: str, given: Mapping[str, Any]) -> None:
    """Raise UserError for too many requests, before they are drawn."""
    from llmviewer.simulation import options as load

    words = load.checked({name: value for name, value in given.items() if name in load.LOAD})
    traffic = load.traffic_of(words)
    requests = traffic.most_requests * words["replications"]
    if requests > MAX_REQUESTS:
        raise UserError(
            f"the load has {requests:,.0f} requests; allowed here: at most {MAX_REQUESTS:,}; give fewer requests"
        )
    if words["find_rate"] and (words["requests"] is None or words["duration"] is not None):
        raise UserError(f"find_rate needs requests in place of duration here: at most {MAX_REQUESTS:,}")
    if words["replicas"] > MAX_REPLICAS:
        raise UserError(f"replicas is {words['replicas']:,}; allowed here: at most {MAX_REPLICAS}")


def _check_sizing(given: Mapping[str, Any]) -> None:
    """Raise UserError for too many chips or values to try."""
    from llmviewer.planning.call import chips_of

    chips = len(chips_of(given["hardware"]))
    if chips > MAX_CHIPS:
        raise UserError(f"hardware has {chips} chips; allowed here: at most {MAX_CHIPS}")
    tried = math.prod(
        len(value) if isinstance(value, list) else value.count(",") + value.count(";") + 1
        for name, value in given.items()
        if name not in ("hardware", "price", "ignore_fields") and isinstance(value, list | str) and _is_option(name)
    )
    if tried > MAX_TRIED:
        raise UserError(f"the options have {tried:,} combinations to try; allowed here: at most {MAX_TRIED}")


def _is_option(name: str) -> bool:
    from llmviewer.simulation.options import LOAD
    from llmviewer.techniques.options import OPTIONS

    return name in OPTIONS and name not in LOAD
