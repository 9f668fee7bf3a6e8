"""The search for a highest rate ends where no rate is too high."""

from __future__ import annotations

from math import inf

import llmviewer as lv
from llmviewer.planning.capacities import MOST_GROWTH, Bracket, highest


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
