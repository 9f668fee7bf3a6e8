"""The best candidates of `size` are simulated, and replicas are added or removed until the limits hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from math import ceil
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.planning.chance import chance_of
from llmviewer.planning.pools import Pair
from llmviewer.planning.screen import Bounds, Candidate
from llmviewer.planning.workload import Workload
from llmviewer.simulation.call import Prepared, finished, prepared, ratios_of, run_all
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.limits import Limit
from llmviewer.simulation.result import Simulation
from llmviewer.simulation.traffic import LEAST_S, Traffic

#: Simulations of one candidate at most, and requests of those that only look for its number of replicas.
MOST_RUNS, PROBED = 12, 4000
#: Replicas of each pool.
Counts = tuple[int, ...]


@frozen
class Answer:
    """A configuration that was simulated under its load.

    words: options of `simulate`.  replicas: of it, spare ones left out.  rate: of one replica [1/s].  users: of one
    replica in a closed loop, else 0.
    latencies: metric -> statistic -> seconds.  ratios: metric -> bounds over value by level, from the calibration.
    running: sequences of a replica in the mean.  counts: replicas of each pool.  holds: whether the load is sustained
    within all limits.  broken: limits that are exceeded.  predicted_devices: fewest that were tried and hold whatever
    the probability.
    """

    hardware: str
    words: Mapping[str, Any]
    devices: int
    replicas: int
    rate: float
    latencies: Mapping[str, Mapping[str, float | None]]
    ratios: Mapping[str, Mapping[str, tuple[float, float]]]
    running: float
    utilization: float
    counts: tuple[int, ...]
    holds: bool
    broken: tuple[Limit, ...]
    saturated: bool
    users: int = 0
    predicted_devices: int = 0

    def limited(self, workload: Workload, metric: str) -> float | None:
        """The limited statistic of a latency [s], its mean if there is no limit; None where it is unknown."""
        return self.latencies[metric][workload.statistic(metric)]


@frozen
class Load:
    """The load and limits as options of `simulate`.

    rate: requests per second of all replicas; None for a trace.  users: of all replicas, in a closed loop; else 0.
    confidence: least probability that the limits hold; 0: the prediction has to hold.  widest: as many replicas as the
    bounds allow are wanted, not as few as hold.
    """

    words: Mapping[str, Any]
    rate: float | None
    users: int = 0
    confidence: float = 0.0
    widest: bool = False

    @property
    def is_divided(self) -> bool:
        """Whether one replica is simulated under its share of the load, not all behind a router."""
        return bool(self.users) or self.rate is not None


@frozen
class Trial:
    """Simulations of a server with different numbers of replicas in its pools, each made once.

    at: replicas of each pool -> the simulation before any request.  confidence: least probability of the limits.
    """

    server: Prepared
    at: Callable[[Counts], Simulation]
    confidence: float
    probes: dict[Counts, Simulation] = field(default_factory=dict)
    wholes: dict[Counts, Simulation] = field(default_factory=dict)

    def probe(self, counts: Counts) -> Simulation:
        """A shorter simulation, which finds the numbers that are worth a whole one."""
        if counts not in self.probes:
            made = self.at(counts)
            made = finished(replace(made, outcomes=tuple(run_all(made.fleet, _shorter(made.traffic), 1))))
            ratios = ratios_of(self.server.answering, made) if self.confidence and made.holds else {}
            self.probes[counts] = replace(made, ratios=ratios)
        return self.probes[counts]

    def whole(self, counts: Counts) -> Simulation:
        """The simulation that `llmviewer simulate` makes."""
        if counts not in self.wholes:
            made, probe = self.at(counts), self.probes.get(counts)
            if probe and self.server.replications == 1 and _shorter(made.traffic) is made.traffic:
                made = probe
            self.wholes[counts] = finished(self.server.run(made))
        return self.wholes[counts]

    def holds(self, made: Simulation) -> bool:
        """Whether the load is sustained within the limits, with the least probability if one is asked for."""
        if not made.holds or not self.confidence:
            return made.holds
        chance = chance_of(made.limits, made.latencies(), made.ratios)
        return chance is None or chance >= self.confidence

    def fewest(self, devices: Callable[[Counts], int]) -> int:
        """The fewest devices that were tried with which the limits hold, whatever the probability; 0 for none."""
        tried = {**self.probes, **self.wholes}
        return min((devices(counts) for counts, made in tried.items() if made.holds), default=0)


def _shorter(traffic: Traffic) -> Traffic:
    """The first PROBED requests, where a rate and no other option says how many there are."""
    fixed = traffic.trace is not None or traffic.count or traffic.duration_s is not None
    return traffic if fixed or (traffic.rate or 0.0) * LEAST_S < 2 * PROBED else replace(traffic, count=PROBED)


def verified(model: Any, candidate: Candidate, load: Load, bounds: Bounds) -> Answer:
    """The candidate with the fewest replicas that hold in simulation; if none do, as it broke.  Raises UserError."""
    one, most, rate = candidate.screened, candidate.screened.most(bounds), load.rate
    server = prepared(model, one.hardware, **candidate.words, **_load_words(load))
    made = server.made

    def at(counts: Counts) -> Simulation:
        if load.users:
            return replace(made, traffic=replace(made.traffic, users=ceil(load.users / counts[0])))
        if rate is None:  # a trace cannot be divided: all replicas behind a router
            return replace(made, fleet=made.fleet.times(counts[0]))
        return replace(made, traffic=made.traffic.at_rate(rate / counts[0]))

    trial = Trial(server=server, at=at, confidence=load.confidence)
    if load.widest:
        found = trial.whole((candidate.replicas,))
        return replace(_answer(candidate, found, candidate.replicas, load), holds=trial.holds(found))
    replicas = _least(lambda count: trial.holds(trial.probe((count,))), min(candidate.replicas, most), most)
    found = trial.whole((replicas,))
    while not trial.holds(found) and replicas < most and trial.holds(trial.probe((replicas,))):
        replicas += 1
        found = trial.whole((replicas,))
    answer = replace(_answer(candidate, found, replicas, load), holds=trial.holds(found))
    return replace(answer, predicted_devices=trial.fewest(lambda counts: one.devices * counts[0]))


def _load_words(load: Load) -> dict[str, Any]:
    """The load as options of `simulate`, at the rate of all replicas."""
    if load.users:
        return {**load.words, "concurrency": load.users}
    return dict(load.words) | ({} if load.rate is None else {"request_rate": load.rate})


def _least(holds: Callable[[int], bool], guess: int, most: int) -> int:
    """The least number for which `holds`, near a guess; the largest that was tried if it holds for none."""
    low, high, step = 0, guess, 1
    for _ in range(MOST_RUNS):
        if holds(high):
            break
        if high >= most:
            return high
        low, high, step = high, min(high + step, most), 2 * step
    else:
        return high
    step = 1
    while high - low > 1:
        middle = max(high - step, (low + high) // 2 if low else 1)
        if holds(middle):
            high, step = middle, 2 * step
        else:
            low = middle
    return high


def verified_pair(model: Any, pair: Pair, load: Load, bounds: Bounds) -> Answer:
    """Two pools with the fewest instances that hold in simulation, from those of the steady state.

    Raises UserError.
    """
    counts = tuple(part.replicas for part in pair.parts)
    server = prepared(model, pair.parts[0].screened.hardware, **pair.words((1, 1)), **_load_words(load))
    made = server.made
    trial = Trial(
        server=server,
        at=lambda counts: replace(made, fleet=_with_instances(made.fleet, counts)),
        confidence=load.confidence,
    )
    counts = _enough(trial, trial.probe, counts, pair, bounds)
    if trial.holds(trial.probe(counts)):
        if not load.widest:
            counts = _fewest(trial, counts, pair)
        counts = _enough(trial, trial.whole, counts, pair, bounds)
    made = trial.whole(counts)
    return Answer(
        hardware=pair.hardware,
        words=pair.words(counts),
        devices=_devices(pair, counts),
        replicas=1,
        rate=float(made.traffic.mean_rate or 0.0),
        counts=counts,
        predicted_devices=trial.fewest(lambda counts: _devices(pair, counts)),
        **_measured(made) | {"holds": trial.holds(made)},
    )


def _fewest(trial: Trial, counts: Counts, pair: Pair) -> Counts:
    """The fewest instances that hold in probes: the larger pool shrinks first, in turns until neither can."""
    before: Counts = ()
    while counts != before:
        before = counts
        for pool in sorted(range(len(counts)), key=lambda at: -counts[at] * pair.parts[at].screened.devices):
            counts = _shrunk(trial, counts, pool)
    return counts


def _shrunk(trial: Trial, counts: Counts, pool: int) -> Counts:
    """The counts with the fewest instances of one pool that hold with those of the other."""

    def at(count: int) -> Counts:
        return tuple(count if other == pool else kept for other, kept in enumerate(counts))

    return at(_least(lambda count: trial.holds(trial.probe(at(count))), counts[pool], counts[pool]))


def _enough(trial: Trial, run: Callable[[Counts], Simulation], counts: Counts, pair: Pair, bounds: Bounds) -> Counts:
    """Instances from these on that hold, or the last ones that were tried within the bounds."""
    for _ in range(MOST_RUNS):
        found = run(counts)
        more = tuple(count + added for count, added in zip(counts, _lacking(found), strict=True))
        if trial.holds(found) or not _within(pair, more, bounds):
            break
        counts = more
    return counts


def _with_instances(fleet: Fleet, counts: tuple[int, ...]) -> Fleet:
    assert fleet.decode is not None
    first, then = (
        replace(pool, replicas=pool.replicas * count) for pool, count in zip(fleet.pools, counts, strict=True)
    )
    return replace(fleet, prefill=first, decode=then)


def _within(pair: Pair, counts: tuple[int, ...], bounds: Bounds) -> bool:
    """Whether so many instances are within the bounds, spare ones included."""
    spared = tuple(count + bounds.spare for count in counts)
    usd = sum(part.screened.usd_per_hour(count) for part, count in zip(pair.parts, spared, strict=True))
    free = bounds.usd_per_hour == float("inf")
    return _devices(pair, spared) <= bounds.devices and (free or usd <= bounds.usd_per_hour)


def _devices(pair: Pair, counts: tuple[int, ...]) -> int:
    return sum(part.screened.devices * count for part, count in zip(pair.parts, counts, strict=True))


def _lacking(made: Simulation) -> tuple[int, int]:
    """Instances to add to the pools: to that whose limit is exceeded, to both where neither is known."""
    metrics = {one.metric for one in made.broken}
    if made.saturated or metrics not in ({"ttft_s"}, {"tpot_s"}):
        return 1, 1
    return (1, 0) if metrics == {"ttft_s"} else (0, 1)


def _answer(candidate: Candidate, made: Simulation, replicas: int, load: Load) -> Answer:
    one = candidate.screened
    rate = made.mean_load("requests_per_s") if load.users else made.traffic.mean_rate or 0.0
    words = dict(candidate.words)
    if not load.is_divided and replicas > 1:
        words["replicas"] = replicas
    return Answer(
        hardware=one.hardware,
        words=words,
        devices=one.devices * replicas,
        replicas=replicas,
        rate=rate if load.is_divided else rate / replicas,
        users=made.traffic.users,
        counts=(replicas,),
        **_measured(made),
    )


def _measured(made: Simulation) -> dict[str, Any]:
    """The figures of an answer that a simulation has."""
    latencies = made.latencies()
    return {
        "latencies": {name: latencies[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
        "ratios": {} if made.saturated else made.ratios,
        "running": made.mean_load("running_mean") / made.fleet.answering.replicas,
        "utilization": made.mean_load("utilization"),
        "holds": made.holds,
        "broken": tuple(made.broken),
        "saturated": made.saturated,
    }
