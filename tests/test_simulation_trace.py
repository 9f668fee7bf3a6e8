"""The trace of a simulated run is JSON that viewers read, and says what the run did."""

from __future__ import annotations

import itertools
import json

import pytest

import llmviewer as lv
from llmviewer.reports import simulation_trace


@pytest.fixture(scope="module")
def events() -> list[dict[str, object]]:
    made = lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=20, requests=100, batching="disaggregated")
    return json.loads("\n".join(simulation_trace.lines(made)))["traceEvents"]


def test_every_request_has_its_phases_one_after_another(events: list[dict[str, object]]) -> None:
    phases: dict[object, list[tuple[float, str, str]]] = {}
    for event in events:
        if event["ph"] in "be":
            phases.setdefault(event["id"], []).append((event["ts"], event["name"], event["ph"]))  # type: ignore[arg-type]
    assert len(phases) == 100
    for found in phases.values():
        assert [name for _, name, _ in found] == ["queue", "queue", "prefill", "prefill", "decode", "decode"]
        assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)


def test_steps_of_a_replica_do_not_overlap(events: list[dict[str, object]]) -> None:
    processes = {event["pid"] for event in events if event["ph"] == "X"}
    assert len(processes) == 2
    for process in processes:
        steps = [(event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == process]
        for (start, length), (following, _) in itertools.pairwise(steps):
            assert start + length <= following + 0.002  # type: ignore[operator]


def test_times_are_in_microseconds(events: list[dict[str, object]]) -> None:
    """A hundred requests at 20 a second arrive within about 5 s, here with the default seed."""
    arrivals = [event["ts"] for event in events if event["ph"] == "b" and event["name"] == "queue"]
    assert 3e6 < max(arrivals) < 7e6  # type: ignore[type-var]


def test_replicas_are_named_by_their_pool(events: list[dict[str, object]]) -> None:
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]  # type: ignore[index]
    assert names == ["requests", "prefill replica 1", "decode replica 1"]
