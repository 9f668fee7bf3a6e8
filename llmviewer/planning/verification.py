"""Second floor of `size`: the best candidates are simulated, and replicas are added or removed until the limits hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmviewer.planning.pools import Pair
from llmviewer.planning.screen import Bounds, Candidate
from llmviewer.planning.workload import Workload
from llmviewer.simulation.call import Prepared, prepared
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.limits import Limit
from llmviewer.simulation.result import Simulation

#: Simulations of one candidate at most.
MOST_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A configuration that was simulated under its load.

    words: options of `simulate`.  replicas: of it, spare ones left out.  rate: of one replica [1/s].  latencies: metric
    -> statistic -> seconds.  ratios: metric -> bounds over value by level, from the calibration.  running: sequences of a replica in the mean.
    counts: replicas of each pool.  holds: whether the
    load is sustained within all limits.  broken: limits that are exceeded.
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

    def limited(self, workload: Workload, metric: str) -> float | None:
        """The limited statistic of a latency [s], its mean if there is no limit; None where it is unknown."""
        return self.latencies[metric][workload.statistic(metric)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load and limits as options of `simulate`.  rate: requests per second of all replicas; None for a trace."""

    words: Mapping[str, Any]
    rate: float | None


def verified(model: Any, candidate: Candidate, load: Load, bounds: Bounds) -> Answer:
    """The candidate with the fewest replicas that hold in simulation; if none do, as it broke.  Raises UserError."""
    one, most = candidate.screened, candidate.screened.most(bounds)
    per_replica = load.rate is not None
    words = dict(load.words) | ({"request_rate": load.rate} if per_replica else {})
    server = prepared(model, one.hardware, **candidate.words, **words)
    runs: dict[int, Simulation] = {}

    def holds(replicas: int) -> bool:
        if replicas not in runs:
            runs[replicas] = _run(server, load.rate, replicas)
        return runs[replicas].holds

    replicas = _least(holds, min(candidate.replicas, most), most)
    return _answer(candidate, runs[replicas], replicas, load)


def _run(server: Prepared, rate: float | None, replicas: int) -> Simulation:
    """One replica under its share of the load; of a trace, all replicas behind a router."""
    made = server.made
    if rate is None:
        return server.run(replace(made, fleet=made.fleet.times(replicas)))
    return server.run(replace(made, traffic=made.traffic.at_rate(rate / replicas)))


def _least(holds: Any, guess: int, most: int) -> int:
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
    """Two pools with the fewest instances around those of the steady state that hold in simulation.

    Raises UserError.
    """
    counts = tuple(part.replicas for part in pair.parts)
    words = dict(load.words) | ({"request_rate": load.rate} if load.rate is not None else {})
    server = prepared(model, pair.parts[0].screened.hardware, **pair.words((1, 1)), **words)
    runs: dict[tuple[int, ...], Simulation] = {}

    def run(tried: tuple[int, ...]) -> Simulation:
        if tried not in runs:
            runs[tried] = server.run(replace(server.made, fleet=_with_instances(server.made.fleet, tried)))
        return runs[tried]

    while not run(counts).holds and len(runs) < MOST_RUNS:
        more = tuple(count + added for count, added in zip(counts, _lacking(run(counts)), strict=True))
        if not _within(pair, more, bounds):
            break
        counts = more
    for fewer in ((counts[0] - 1, counts[1]), (counts[0], counts[1] - 1)):
        if run(counts).holds and min(fewer) and run(fewer).holds:
            counts = fewer
    made = run(counts)
    return Answer(
        hardware=pair.hardware,
        words=pair.words(counts),
        devices=_devices(pair, counts),
        replicas=1,
        rate=float(made.traffic.mean_rate or 0.0),
        counts=counts,
        **_measured(made),
    )


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
    rate = made.traffic.mean_rate or 0.0
    words = dict(candidate.words)
    if load.rate is None and replicas > 1:
        words["replicas"] = replicas
    return Answer(
        hardware=one.hardware,
        words=words,
        devices=one.devices * replicas,
        replicas=replicas,
        rate=rate if load.rate is not None else rate / replicas,
        counts=(replicas,),
        **_measured(made),
    )


def _measured(made: Simulation) -> dict[str, Any]:
    """The figures of an answer that a simulation has."""
    found = made.to_dict()
    return {
        "latencies": {name: found[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
        "ratios": {} if made.saturated else made.ratios,
        "running": float(found["running_mean"]) / made.fleet.answering.replicas,
        "utilization": float(found["utilization"]),
        "holds": made.holds,
        "broken": tuple(made.broken),
        "saturated": made.saturated,
    }
