"""The search for a highest rate ends where no rate is too high."""

from __future__ import annotations

from math import inf

from llmviewer.planning.capacities import MOST_GROWTH, Bracket, highest


def test_a_load_too_small_to_overload_a_server_has_no_highest_rate() -> None:
    """Few requests that all arrive at once still hold their limits, at whatever rate."""
    asked: list[float] = []
    found = highest(lambda rate: asked.append(rate) or 0.13, 200.0, Bracket())
    assert found.low == found.high == inf
    assert max(asked) <= MOST_GROWTH * 200.0
