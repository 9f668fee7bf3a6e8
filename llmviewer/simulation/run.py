"""Runs requests through a fleet: who gets them, and what is kept of the run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmviewer.simulation.driving import Driven, drive
from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.requests import Gaps, Records, Requests, Timeline, Whole
from llmviewer.simulation.timelines import gaps_of, timeline_of

#: Reasons for which requests are refused; 0 where a request is not.
REFUSALS = (
    "",
    "longer than the longest context",
    "longer than the KV cache of a replica",
    "with prompts longer than a step, which the engine does not split",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Records, intervals and gaps of one run.

    timelines: one per replica, of the pool with the index in `pools`.  blocks: KV-cache blocks of each replica.
    completed: whether all requests were answered; False after an interrupt.
    """

    records: Records
    timelines: tuple[Timeline, ...]
    pools: tuple[int, ...]
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
    return Outcome(
        records=records if completed else _arrived(records, min(replica.clock_s for replica in driven.replicas)),
        timelines=tuple(map(timeline_of, driven.replicas)),
        pools=driven.pools,
        blocks=tuple(replica.pool.total for replica in driven.replicas),
        gaps=gaps_of(driven.replicas),
        completed=completed,
    )


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
    return Records(**kept)


def _arrived(records: Records, reached_s: float) -> Records:
    """The requests of an interrupted run that were answered, or arrived before the time that all replicas reached."""
    kept = ~np.isnan(records.finish_s) | (records.arrival_s <= reached_s)
    columns = {name: getattr(records, name) for name in Records.__dataclass_fields__}
    return replace(records, **{name: values[kept] for name, values in columns.items() if np.ndim(values)})


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
