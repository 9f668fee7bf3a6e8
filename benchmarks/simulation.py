"""Simulated requests per second of the event loop: python benchmarks/simulation.py.

Prices and tables are made before the clock starts.  Loads: no pressure on the KV cache, users in a closed loop, a small
cache with shared prefixes, preemption and eviction, and turns of sessions with and without eviction.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from llmviewer import api
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.fleets import fleet_of
from llmviewer.simulation.options import checked, traffic_of
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import simulate_requests

#: Runs of each load, of which the fastest counts.
RUNS = 3


def poisson(rate: float, count: int, concurrency: int = 0) -> Requests:
    """Requests of the lengths of Azure's conversations."""
    times = np.zeros(count) if concurrency else np.cumsum(np.random.default_rng(0).exponential(1.0 / rate, count))
    lengths = (np.full(count, length) for length in (1155, 211))
    return Requests(arrival_s=times, input_len=next(lengths), output_len=next(lengths), concurrency=concurrency)


def with_prefixes(asked: Requests) -> Requests:
    """The requests with two blocks of 512 tokens each, of which few occur often."""
    random = np.random.default_rng(1)
    names = np.minimum(random.zipf(1.3, (len(asked), 2)), 500) + np.array([0, 1000])
    return replace(asked, prefixes=tuple(map(tuple, names.tolist())), prefix_tokens=512)


def small(fleet: Fleet, blocks: int) -> Fleet:
    """The fleet with a cache of so many blocks."""
    return replace(fleet, prefill=replace(fleet.prefill, room=replace(fleet.prefill.room, blocks=blocks)))  # type: ignore[type-var]


def sessions(**words: object) -> Requests:
    """40,000 turns of agents."""
    agents = "turns=8,think=20s,system=2000,first=1500,then=400,output=300"
    return traffic_of(checked({"requests": 40_000, "sessions": agents, **words})).requests()


def main() -> None:
    """Print a line per load."""
    one = api.configuration("llama-3.1-8b", "h100-sxm", engine="vllm", batching="continuous")
    fleet = fleet_of(one, "round-robin", 1366.0)
    eight = replace(fleet, prefill=replace(fleet.prefill, replicas=8))
    loads = {
        "8 requests/s on one replica": (poisson(8.0, 40_000), fleet),
        "20 requests/s on one replica": (poisson(20.0, 40_000), fleet),
        "64 requests/s on eight replicas": (poisson(64.0, 80_000), eight),
        "64 users": (poisson(1.0, 20_000, 64), fleet),
        "sessions, 4 requests/s": (sessions(request_rate=4.0), fleet),
        "sessions of 64 users": (sessions(concurrency=64), fleet),
        "sessions, 12,000 blocks": (sessions(request_rate=4.0), small(fleet, 12_000)),
        "shared prefixes, 2,500 blocks": (with_prefixes(poisson(21.0, 20_000)), small(fleet, 2500)),
    }
    for name, (asked, served) in loads.items():
        seconds = []
        for _ in range(RUNS):
            started = time.perf_counter()
            records = simulate_requests(asked, served).records
            seconds.append(time.perf_counter() - started)
        hits = records.cached_tokens.sum() / records.input_len.sum()
        extra = f"{records.preemptions.sum():,} preemptions, {hits:.0%} hits"
        print(f"{name:34} {len(asked) / min(seconds):10,.0f} requests/s   {extra}")


if __name__ == "__main__":
    main()
