"""The search for a highest rate ends where no rate is too high."""

from __future__ import annotations

from math import inf

import pytest

import llmviewer as lv
from llmviewer.planning.capacities import MOST_GROWTH, Bracket, highest
from llmviewer.simulation import run
from llmviewer.simulation.run import Driven


def test_a_load_too_small_to_overload_a_server_has_no_highest_rate() -> None:
    """Few requests that all arrive at once still hold their limits, at whatever rate."""
    asked: list[float] = []
    found = highest(lambda rate: asked.append(rate) or 0.13, 200.0, Bracket())
    assert found.low == found.high == inf
    assert max(asked) <= MOST_GROWTH * 200.0


def test_an_interrupt_keeps_the_best_of_what_was_searched() -> None:
    steps, told = list[int](), list[str]()

    def advance(number: int) -> None:
        steps.append(number)
        if len(steps) == 1:
            raise KeyboardInterrupt

    load = {"request_rate": 1, "input_len": 200, "output_len": 20, "ttft": "2s", "requests": 200}
    found = lv.size("llama-3.1-8b", ["l4", "a10"], advance=advance, best_so_far=told.append, **load)
    assert found.notes[0] == "interrupted: 1 of 2 chips are searched; the best of these"
    assert found.best is not None and found.best.hardware == "l4" and found.best.simulated
    assert told[0].startswith("best so far 1 x l4") and told[0].endswith("before simulation")
    assert told[-1].startswith("best so far 1 x l4") and "before" not in told[-1]


def test_part_of_a_simulation_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the first run of the only chip ends the search; half of that run is not judged as a whole one."""

    def interrupted(driven: Driven) -> None:
        driven.stations[0].run(range(50))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "drive", interrupted)
    load = {"request_rate": 1, "input_len": 200, "output_len": 20, "ttft": "2s", "requests": 200}
    with pytest.raises(KeyboardInterrupt):
        lv.size("llama-3.1-8b", "l4", **load)
