"""The requests of a run: their sizes, and the times of what has happened to each of them."""

from __future__ import annotations

import numpy as np

from llmviewer.simulation.cache import Hits
from llmviewer.simulation.requests import Records, Requests

#: Tokens loaded from the tiers of a request that loads none.
NONE_LOADED = (0, 0)


class Ledger:
    """One list entry per request, plain numbers because an event loop reads and writes them one by one.

    arrival_s: when the user sends it; ready_s: when it reaches the scheduler, its `host_s` later [s].  rounds: decode
    steps after its first token.  generated: tokens that it had when it was last preempted, which are computed again.
    held: tokens of its KV cache that another replica has computed.  found: tokens of its prompt that are in the cache
    by --prefix-cache; shared: blocks of them that it does not occupy itself; common: the blocks that these are.
    histories: as of `Requests`; named: tokens of each request whose blocks have names; loaded: those of its prompt that
    each tier of the cache had.  Times of what has not happened are NaN.
    """

    __slots__ = (
        *("input_len", "output_len", "rounds", "prefixes", "host_s", "generated", "held", "arrival_s", "ready_s"),
        *("found", "shared", "common", "histories", "named", "loaded"),
        *("start_s", "first_token_s", "finish_s", "cached_tokens", "preemptions"),
    )

    def __init__(self, requests: Requests, rounds: list[int], hits: Hits, host_s: float = 0.0) -> None:
        count, nan = len(requests), float("nan")
        self.input_len: list[int] = requests.input_len.tolist()
        self.output_len: list[int] = requests.output_len.tolist()
        self.rounds, self.prefixes = rounds, requests.prefixes
        self.host_s: list[float] = requests.host_s(host_s).tolist()
        self.generated, self.held = [0] * count, [0] * count
        self.found: list[int] = hits.tokens.tolist()
        self.shared: list[int] = hits.blocks.tolist()
        self.common = hits.common
        self.histories = requests.histories
        last = 0 if requests.histories is None else requests.output_len - 1  # no step reads the last token
        self.named: list[int] = (requests.input_len + last).tolist()
        self.loaded: dict[int, list[int]] = {}
        self.arrival_s: list[float] = requests.arrival_s.tolist()
        self.ready_s = [arrival + host for arrival, host in zip(self.arrival_s, self.host_s, strict=True)]
        self.start_s, self.first_token_s, self.finish_s = [nan] * count, [nan] * count, [nan] * count
        self.cached_tokens, self.preemptions = [0] * count, [0] * count

    def send(self, request: int, time_s: float) -> None:
        """Note that the user sends a request at this time [s]."""
        self.arrival_s[request] = time_s
        self.ready_s[request] = time_s + self.host_s[request]

    def records(self, replica: list[int]) -> Records:
        """The entries as arrays.  replica: index of the one that answered each request."""
        sent = np.array(self.arrival_s)
        return Records(
            arrival_s=sent,
            input_len=np.array(self.input_len),
            output_len=np.array(self.output_len),
            start_s=np.array(self.start_s),
            first_token_s=np.array(self.first_token_s),
            finish_s=np.array(self.finish_s),
            cached_tokens=np.array(self.cached_tokens),
            preemptions=np.array(self.preemptions),
            replica=np.array(replica),
            refused=np.zeros(len(self.rounds), dtype=np.int64),
            **{
                name: np.array([(self.loaded.get(at) or NONE_LOADED)[tier] for at in range(len(sent))])
                for tier, name in enumerate(("host_tokens", "disk_tokens") if self.loaded else ())
            },
            host_s=np.array(self.host_s),
        )
