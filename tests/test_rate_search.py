"""The search for the highest rate finds it, and asks for few runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llmviewer.simulation.parallel import on_all_cores
from llmviewer.simulation.rate_search import TOLERANCE, highest_rate


class Server:
    """Server that sustains rates up to `limit`; it counts the rates it was asked for."""

    def __init__(self, limit: float) -> None:
        self.limit, self.asked = limit, 0

    def meets(self, rates: Sequence[float]) -> list[bool]:
        self.asked += len(rates)
        return [rate <= self.limit for rate in rates]


@pytest.mark.parametrize("limit", [0.3, 7.0, 41.7, 5000.0])
@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_the_highest_rate_is_found_within_one_percent(limit: float, at_once: int) -> None:
    server = Server(limit)
    found = highest_rate(server.meets, guess=10.0, at_once=at_once)
    assert limit * (1.0 - TOLERANCE) <= found <= limit


def test_a_good_guess_takes_eight_runs() -> None:
    server = Server(9.0)
    highest_rate(server.meets, guess=10.0)
    assert server.asked <= 8  # one that fails, then halves of 10: 2^7 = 128 parts


def test_no_rate_is_zero() -> None:
    assert highest_rate(Server(0.0).meets, guess=10.0) == 0.0


def test_values_are_answered_in_their_order_on_all_cores() -> None:
    offset = 3
    assert on_all_cores(lambda value: value + offset, list(range(7))) == [3, 4, 5, 6, 7, 8, 9]


def test_errors_of_other_processes_are_raised() -> None:
    def fail(value: int) -> int:
        if value == 3:
            raise ValueError("three")
        return value

    with pytest.raises(ValueError, match="three"):
        on_all_cores(fail, list(range(4)))
