"""A simulated run in the Trace Event Format, for https://ui.perfetto.dev: steps and load of replicas, and requests.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmviewer.reports.trace import microseconds
from llmviewer.simulation.requests import Timeline
from llmviewer.simulation.result import Simulation

#: Most steps of a replica, and requests, that are drawn; viewers get slow with more.
MOST_STEPS, MOST_REQUESTS = 100_000, 20_000
#: Process of the requests; those of replicas follow.
REQUESTS = 1
#: Phase of a request -> field of the records at which it begins.
PHASES = {"queue": "arrival_s", "prefill": "start_s", "decode": "first_token_s"}


def lines(made: Simulation) -> Iterator[str]:
    """Yields the lines of the JSON object, one per event, of the first replication."""
    yield '{"displayTimeUnit": "ms",'
    yield f'"otherData": {json.dumps(_about(made))},'
    yield '"traceEvents": ['
    last = ""
    for event in _events(made):
        if last:
            yield f"{last},"
        last = json.dumps(event)
    yield last
    yield "]}"


def _about(made: Simulation) -> dict[str, Any]:
    """Returns the setting, and how many requests and steps are left out."""
    outcome = made.outcomes[0]
    steps = sum(max(len(line.start_s) - MOST_STEPS, 0) for line in outcome.timelines)
    return {
        "model": made.setting.model,
        "hardware": made.setting.hardware,
        "engine": made.setting.engine,
        "workload": made.setting.workload,
        "requests_left_out": max(len(made.records) - MOST_REQUESTS, 0),
        "intervals_left_out": steps,
    }


def _events(made: Simulation) -> Iterator[dict[str, Any]]:
    outcome = made.outcomes[0]
    yield _named(REQUESTS, "requests")
    pools = ("replica",) if made.fleet.decode is None else ("prefill replica", "decode replica")
    numbers = [outcome.pools[:at].count(pool) for at, pool in enumerate(outcome.pools)]
    for at, (line, pool) in enumerate(zip(outcome.timelines, outcome.pools, strict=True)):
        process, (replica, lane) = REQUESTS + 1 + at, divmod(numbers[at], outcome.lanes[pool])
        part = f", micro-batch {lane + 1}" if outcome.lanes[pool] > 1 else ""
        yield _named(process, f"{pools[pool]} {replica + 1}{part}")
        yield from _steps(line, process)
    yield from _phases(made)


def _named(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def _time(seconds: float) -> float:
    """Returns microseconds, rounded to the nanosecond."""
    return microseconds(round(seconds * 1e9))


def _steps(line: Timeline, process: int) -> Iterator[dict[str, Any]]:
    """Yields a slice for every interval of a replica, and counters of what it decodes, waits for and stores."""
    columns = (line.start_s, line.end_s, line.steps, line.decoding, line.prompt_tokens, line.waiting, line.used_blocks)
    table = np.stack(columns, axis=1)[:MOST_STEPS].tolist()
    for start, end, steps, decoding, tokens, waiting, blocks in table:
        prompts = f"{tokens:,.0f} prompt tokens, " if tokens else ""
        name = f"{prompts}{decoding:.0f} decoding" if steps == 1 else f"{steps:.0f} steps, {decoding:.0f} decoding"
        begun, ended = _time(start), _time(end)
        where = {"pid": process, "tid": 1, "ts": begun}
        yield {"name": name, "cat": "prompts" if tokens else "decode", "ph": "X", "dur": ended - begun, **where}
        for counter, value in (("decoding", decoding), ("waiting", waiting), ("KV-cache blocks", blocks)):
            yield {"name": counter, "ph": "C", **where, "args": {"value": value}}


def _phases(made: Simulation) -> Iterator[dict[str, Any]]:
    """Yields the phases of each answered request as asynchronous slices."""
    records = made.records
    times = np.stack([getattr(records, name) for name in (*PHASES.values(), "finish_s")], axis=1)
    answered = np.flatnonzero(~np.isnan(times).any(axis=1))[:MOST_REQUESTS]
    for request, row in zip(answered.tolist(), times[answered].tolist(), strict=True):
        shared = {"cat": "request", "id": request, "pid": REQUESTS, "tid": 1}
        sizes = {"input_len": int(records.input_len[request]), "output_len": int(records.output_len[request])}
        for phase, start, end in zip(PHASES, row, row[1:], strict=False):
            yield {"name": phase, "ph": "b", "ts": _time(start), "args": sizes, **shared}
            yield {"name": phase, "ph": "e", "ts": _time(end), **shared}
