"""Runs requests through a fleet: routes arrivals, advances the replicas together, closes the loop of users."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from math import inf, nan, nextafter
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.simulation.fleet import Fleet, Pool, Router
from llmviewer.simulation.ledger import Ledger
from llmviewer.simulation.pipeline import Pipeline
from llmviewer.simulation.ranks import Ranks
from llmviewer.simulation.replica import Replica
from llmviewer.simulation.requests import Gaps, Records, Requests, Timeline, Whole
from llmviewer.simulation.timelines import gaps_of, timeline_of

#: What steps on its own.
Unit: TypeAlias = Replica | Ranks | Pipeline


@dataclass(slots=True)
class Station:
    """A pool that runs: its replicas, their ledger and their router.

    replicas: with every micro-batch of a pipeline; entries: those that a router sees, of a pipeline the first one.
    units: replicas, or ranks that step together, or the micro-batches of a pipeline.
    """

    pool: Pool
    ledger: Ledger
    replicas: list[Replica]
    entries: list[Replica]
    router: Router
    units: list[Unit]

    @staticmethod
    def of(pool: Pool, requests: Requests, rounds: list[int], held: list[int] | None = None) -> Station:
        """An idle pool for these requests.

        rounds: decode steps of each after its first token.  held: tokens of each that another pool has computed.
        """
        if held or pool.kv_cache.hit_rate:  # the cache comes from elsewhere, or its hits are stated
            requests = replace(requests, histories=None)
        requests = requests.in_blocks(pool.room.block_tokens)
        ledger = Ledger(requests, rounds, pool.hits(requests.input_len), pool.host_s)
        ledger.held = held or ledger.held
        replicas = [
            Replica(ledger, pool.prices, pool.room, pool.scheduler, requests.prefix_tokens, pool.tiers)
            for _ in range(pool.replicas * pool.stages)
        ]
        together = pool.ranks * pool.stages
        groups = [replicas[at : at + together] for at in range(0, len(replicas), together)]
        units: list[Unit] = list(replicas)
        if together > 1:
            units = [(Ranks if pool.ranks > 1 else Pipeline)(group, pool.prices) for group in groups]
        return Station(pool, ledger, replicas, replicas[:: pool.stages], pool.router(), units)

    def route(self, request: int) -> Replica:
        """Put a request into the inbox of a replica, which is returned."""
        chosen = 0
        if len(self.entries) > 1:
            prefixes = self.ledger.prefixes[request] if self.ledger.prefixes is not None else ()
            chosen = self.router.choose(request, prefixes, self.entries)
        self.entries[chosen].expect(request)
        return self.entries[chosen]

    def run(self, requests: Iterable[int]) -> None:
        """Answer requests that arrive in this order, and no others."""
        ready, waits = self.ledger.ready_s, self.router.waits and len(self.entries) > 1
        for request in requests:
            if waits:
                for unit in self.units:
                    unit.run(ready[request])
            self.route(request)
        for unit in self.units:
            unit.run()


@dataclass(slots=True)
class Driven:
    """Requests on their way through a fleet.

    links: time until which each link between the pools is busy [s].  replicas: all of them, pool by pool; units: as of
    `Station`.  pools: index of the pool of each replica, and `stages` of each unit.
    """

    requests: Requests
    fleet: Fleet
    stations: list[Station]
    links: list[float]
    replicas: list[Replica] = field(init=False)
    pools: tuple[int, ...] = field(init=False)
    units: list[Unit] = field(init=False)
    stages: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        """List the replicas of the pools."""
        self.replicas = [replica for station in self.stations for replica in station.replicas]
        self.pools = tuple(index for index, station in enumerate(self.stations) for _ in station.replicas)
        self.units = [unit for station in self.stations for unit in station.units]
        self.stages = tuple(index for index, station in enumerate(self.stations) for _ in station.units)

    @staticmethod
    def of(requests: Requests, fleet: Fleet) -> Driven:
        """An idle fleet; only the last pool decodes more than the first token."""
        rounds = np.ceil((requests.output_len - 1.0) / fleet.answering.prices.tokens_per_round).astype(int).tolist()
        links = min(pool.replicas for pool in fleet.pools)
        if fleet.decode is None:
            return Driven(requests, fleet, [Station.of(fleet.prefill, requests, rounds)], [0.0] * links)
        first = Station.of(fleet.prefill, requests, [0] * len(requests))
        then = Station.of(fleet.decode, requests, rounds, requests.input_len.tolist())
        return Driven(requests, fleet, [first, then], [0.0] * links)

    def hand_over(self, request: int, time_s: float) -> bool:
        """Send the KV cache of a prompt that ended to the decode pool; False where no token is left to generate."""
        first, then = self.stations
        then.ledger.first_token_s[request] = first.ledger.first_token_s[request]
        if not then.ledger.rounds[request]:
            then.ledger.finish_s[request] = time_s
            return False
        link = self.links.index(min(self.links))
        arrived = max(time_s, self.links[link]) + self.fleet.transfer_s(then.ledger.input_len[request])
        self.links[link] = then.ledger.ready_s[request] = arrived
        return True

    def goes_on(self, station: Station, request: int, time_s: float) -> bool:
        """Send a request that left a pool to the next one; False where its answer is complete."""
        if station is self.stations[-1] or not self.hand_over(request, time_s):
            return False
        self.stations[-1].route(request)
        return True

    def then(self) -> dict[int, list[tuple[int, float]]]:
        """Request -> those that its user sends next, and how long after its end [s]."""
        found: dict[int, list[tuple[int, float]]] = {}
        for request, (before, delay_s) in self.requests.after.items():
            found.setdefault(before, []).append((request, delay_s))
        return found

    def advance(self, chosen: int, times: list[float], until_s: float = inf) -> list[tuple[float, int]]:
        """Run the unit that is behind all others until it reaches them, or this time [s]; the answers that ended.

        times: before which nothing happens at each that matters to the others [s].
        """
        unit = self.units[chosen]
        seen, others = [len(one.left) for one in unit.ranks], min(until_s, *times[:chosen], *times[chosen + 1 :], inf)
        unit.run(max(others, nextafter(times[chosen], inf)))
        station = self.stations[self.stages[chosen]]
        left = [one for rank, past in zip(unit.ranks, seen, strict=True) for one in rank.left[past:]]
        return [one for one in sorted(left, key=itemgetter(0)) if not self.goes_on(station, one[1], one[0])]

    def records(self) -> Records:
        """Times of the requests so far."""
        first, last = self.stations[0].ledger, self.stations[-1].ledger
        last.arrival_s, last.start_s, last.cached_tokens = first.arrival_s, first.start_s, first.cached_tokens
        last.host_s, last.loaded = first.host_s, first.loaded
        owners = [0] * len(self.requests)
        for index, replica in enumerate(self.stations[-1].replicas):
            for _, request in replica.left:
                owners[request] = index // self.stations[-1].pool.stages
        records, past = last.records(owners), self.requests.histories
        return records if past is None else replace(records, session=past.session, turn=past.turn)


def drive(driven: Driven) -> None:
    """Run all requests."""
    if driven.requests.after:
        _sessions(driven)
        return
    if driven.requests.concurrency:
        _closed_loop(driven)
        return
    first, *others = driven.stations
    first.run(range(len(driven.requests)))
    for then in others:  # nothing flows back, so the pools run one after another
        ended = sorted(left for replica in first.replicas for left in replica.left)
        handed = [request for time_s, request in ended if driven.hand_over(request, time_s)]
        then.run(sorted(handed, key=then.ledger.ready_s.__getitem__))


def _closed_loop(driven: Driven) -> None:
    """Run requests of which each, but for the first ones, is sent when another ends."""
    count, users = len(driven.requests), driven.requests.concurrency
    first, replicas = driven.stations[0], driven.replicas
    following = iter(range(users, count))
    if len(replicas) == first.pool.stages:
        replicas[0].following.extend(following)
        first.run(range(min(users, count)))
        return
    for request in range(min(users, count)):
        first.route(request)
    for replica in replicas:
        replica.pauses = True
    while True:
        times = [unit.next_s for unit in driven.units]
        chosen = times.index(min(times))
        if times[chosen] == inf:
            return
        for time_s, _ in driven.advance(chosen, times):
            if (sent := next(following, None)) is not None:
                first.ledger.send(sent, time_s)
                first.route(sent)


def _sessions(driven: Driven) -> None:
    """Run requests of which some are sent a delay after another one ends, and in a closed loop others when its user has
    no such request left."""
    then, first, replicas = driven.then(), driven.stations[0], driven.replicas
    begins = [at for at in range(len(driven.requests)) if at not in driven.requests.after]
    users = driven.requests.concurrency or len(begins)
    coming, following = sorted((first.ledger.arrival_s[at], at) for at in begins[:users]), iter(begins[users:])
    for request in driven.requests.after:
        first.ledger.send(request, nan)
    if len(replicas) == first.pool.stages:  # it sends them itself
        replicas[0].turns.update(then)
        replicas[0].following.extend(following)
        first.run(at for _, at in coming)
        return
    for replica in replicas:
        replica.pauses = True
    if len(driven.stations) == 1 and not first.router.waits:
        _running_ahead(driven, then, coming, deque(following))
        return
    while True:
        times = [unit.next_s for unit in driven.units]
        chosen, sent_s = times.index(min(times)), coming[0][0] if coming else inf
        if coming and sent_s <= times[chosen]:
            _, request = heappop(coming)
            first.ledger.send(request, sent_s)
            first.route(request)
            continue
        if times[chosen] == inf:
            return
        for time_s, request in driven.advance(chosen, times, sent_s):
            turns = then.get(request) or [(one, 0.0) for one in islice(following, 1)]
            for turn, delay_s in turns:
                heappush(coming, (time_s + delay_s, turn))


def _running_ahead(
    driven: Driven, then: Mapping[int, list[tuple[int, float]]], coming: list[tuple[float, int]], following: deque[int]
) -> None:
    """Run replicas that no router looks at, each ahead of the others until one of these may send it a request.

    coming: requests by the time at which they are sent [s].  following: first ones of users who have none left.
    """
    first, units = driven.stations[0], driven.units
    delays = {request: min(delay_s for _, delay_s in turns) for request, turns in then.items()}
    base, rise, _ = first.pool.prices.decode_line(1, 1.0)
    step_s, owner = base + rise, {id(rank): at for at, unit in enumerate(units) for rank in unit.ranks}

    sends = [inf] * len(units)
    while True:
        other_s = 0.0 if following else inf
        while coming and coming[0][0] <= min(sends):
            sent_s, request = heappop(coming)
            first.ledger.send(request, sent_s)
            at = owner[id(first.route(request))]
            sends[at] = min(sends[at], sent_s + first.ledger.rounds[request] * step_s + delays.get(request, other_s))
        chosen = sends.index(min(sends))
        if sends[chosen] == inf:
            break
        for time_s, request in driven.advance(chosen, sends, coming[0][0] if coming else inf):
            turns = then.get(request) or [(following.popleft(), 0.0) for _ in range(min(len(following), 1))]
            for turn, delay_s in turns:
                heappush(coming, (time_s + delay_s, turn))
        sends[chosen] = units[chosen].next_send_s(delays, other_s, step_s)
    for unit in units:  # nobody sends any more
        while unit.next_s < inf:
            unit.run()


#: Reasons for which requests are refused; 0 where a request is not.
REFUSALS = (
    "",
    "longer than the longest context",
    "longer than the KV cache of a replica",
    "with prompts longer than a step, which the engine does not split",
)


@frozen(eq=False)
class Outcome:
    """Records, intervals and gaps of one run.

    timelines: one per replica, of the pool with the index in `pools`; of a pipeline, one per micro-batch, as many as
    `lanes` of the pool one after another.  blocks: KV-cache blocks of each, which micro-batches share.
    completed: whether all requests were answered; False after an interrupt.
    """

    records: Records
    timelines: tuple[Timeline, ...]
    pools: tuple[int, ...]
    lanes: tuple[int, ...]
    blocks: tuple[int, ...]
    gaps: Gaps
    completed: bool = True


def simulate_requests(requests: Requests, fleet: Fleet) -> Outcome:
    """The times of all requests that a fleet answers; an interrupt (Ctrl-C) ends the run early.

    A request that no replica can ever hold is refused, and its user sends the next one.
    """
    reasons = refusals(requests, fleet)
    accepted = np.flatnonzero(reasons == 0)
    driven = Driven.of(requests if len(accepted) == len(requests) else requests.select(accepted), fleet)
    completed = True
    with _without_collector():
        try:
            drive(driven)
        except KeyboardInterrupt:
            completed = False
    records = driven.records()
    if len(accepted) < len(requests):
        records = _with_refused(records, requests, reasons)
    if requests.histories is not None:  # turns stand session by session
        records = _ordered(records, np.argsort(records.arrival_s, kind="stable"))
    return Outcome(
        records=records if completed else _arrived(records, min(replica.clock_s for replica in driven.replicas)),
        timelines=tuple(map(timeline_of, driven.replicas)),
        pools=driven.pools,
        lanes=tuple(pool.stages for pool in fleet.pools),
        blocks=tuple(replica.pool.total for replica in driven.replicas),
        gaps=gaps_of(driven.replicas),
        completed=completed,
    )


def whole_run(requests: Requests, fleet: Fleet) -> Outcome:
    """The outcome of a run to its end.  Raises KeyboardInterrupt for part of one, which says nothing of a server."""
    found = simulate_requests(requests, fleet)
    if not found.completed:
        raise KeyboardInterrupt
    return found


def refusals(requests: Requests, fleet: Fleet) -> Whole:
    """Index into REFUSALS of every request, shape (requests,)."""
    prompts, total = requests.input_len, requests.input_len + requests.output_len
    reasons: Whole = np.where(total > min(pool.max_context for pool in fleet.pools), 1, 0)
    reasons = np.where((reasons == 0) & (prompts > fleet.prefill.max_prompt), 3, reasons)
    for pool, stored in ((fleet.answering, total - 1), (fleet.prefill, prompts)):
        rounding = 2 if pool.prices.tokens_per_round > 1.0 else 0  # rounds end within blocks
        blocks = -(-stored // pool.room.block_tokens) + pool.room.sequence_blocks + rounding
        reasons = np.where((reasons == 0) & (blocks > pool.room.blocks), 2, reasons)
        shared = np.where(reasons == 0, pool.hits(prompts).blocks, 0)
        own = blocks - shared > pool.room.blocks - np.max(shared, initial=0)
        reasons = np.where((reasons == 0) & own, 2, reasons)
    return reasons


def _with_refused(records: Records, requests: Requests, reasons: Whole) -> Records:
    """The records with entries for refused requests, whose times are NaN."""
    accepted = reasons == 0
    kept: dict[str, Any] = {}
    for name in Records.__dataclass_fields__:
        values = np.asarray(getattr(records, name))
        if not values.ndim:
            kept[name] = float(values)
            continue
        kept[name] = np.full(len(reasons), np.nan) if name.endswith("_s") else np.zeros_like(reasons)
        kept[name][accepted] = values
    kept["arrival_s"] = np.where(accepted, kept["arrival_s"], requests.arrival_s)
    kept |= {"input_len": requests.input_len, "output_len": requests.output_len, "refused": reasons}
    if requests.histories is not None:
        kept |= {"session": requests.histories.session, "turn": requests.histories.turn}
    return Records(**kept)


def _arrived(records: Records, reached_s: float) -> Records:
    """The requests of an interrupted run that were answered, or arrived before the time that all replicas reached."""
    return _ordered(records, np.flatnonzero(~np.isnan(records.finish_s) | (records.arrival_s <= reached_s)))


def _ordered(records: Records, chosen: Whole) -> Records:
    """The records at these indices."""
    columns = {name: getattr(records, name) for name in Records.__dataclass_fields__}
    return replace(records, **{name: values[chosen] for name, values in columns.items() if np.ndim(values)})


@contextmanager
def _without_collector() -> Iterator[None]:
    """Suspend Python's cyclic garbage collector: a run makes millions of small tuples and no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
