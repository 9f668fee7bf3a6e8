"""The search for the highest rate finds it, and asks for few runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.reports import simulation_page
from llmviewer.simulation.limits import TOLERANCE, highest_rate
from llmviewer.simulation.parallel import on_all_cores


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
    seen: dict[int, int] = {}
    found = on_all_cores(lambda value: value + offset, list(range(7)), seen.__setitem__)
    assert found == [3, 4, 5, 6, 7, 8, 9] == [seen[place] for place in range(7)]


def test_answers_larger_than_a_pipe_holds_are_whole() -> None:
    assert list(map(len, on_all_cores(bytes, [10**6, 1, 3 * 10**6, 2]))) == [10**6, 1, 3 * 10**6, 2]


def test_errors_of_other_processes_are_raised() -> None:
    def fail(value: int) -> int:
        if value == 3:
            raise ValueError("three")
        return value

    with pytest.raises(ValueError, match="three"):
        on_all_cores(fail, list(range(4)))


LARGE = ("llama-3.1-405b", "h100-sxm")
SERVER = {"tensor_parallel_size": 8, "quantization": "fp8", "input_len": 16000, "output_len": 500}


def test_a_search_finds_rates_far_below_one_request_per_second() -> None:
    found = lv.simulate(*LARGE, **SERVER, find_rate=True, ttft="p99:4s", requests=300)
    assert 0.0 < found.max_request_rate < 0.1
    assert found.holds and found.traffic.mean_rate == found.max_request_rate
    above = lv.simulate(*LARGE, **SERVER, request_rate=1.2 * found.max_request_rate, ttft="p99:4s", requests=300)
    assert not above.holds


def test_a_search_does_not_depend_on_a_duration_in_which_few_requests_arrive() -> None:
    rates = []
    for duration in ("1m", "20m"):
        found = lv.simulate(*LARGE, **SERVER, find_rate=True, ttft="p99:4s", duration=duration)
        assert found.holds and any("the run is longer" in note for note in found.notes)
        rates.append(found.max_request_rate)
    assert rates[0] == pytest.approx(rates[1], rel=0.05)


def test_a_search_in_vain_shows_the_server_almost_alone() -> None:
    found = lv.simulate(*LARGE, **SERVER, find_rate=True, ttft="p99:1s", requests=100)
    assert found.max_request_rate == 0.0 and not found.saturated and not found.holds
    assert found.latencies()["queue_s"]["p50"] < 0.1  # nearly alone, and yet
    assert found.latencies()["ttft_s"]["p50"] > 1.0


def test_a_search_of_too_few_requests_says_so() -> None:
    notes = {
        count: lv.simulate("llama-3.1-8b", "h100-sxm", find_rate=True, requests=count).notes for count in (50, 20000)
    }
    said = "a run at the highest rate needs more requests for a steady state"
    assert any(note.startswith(said) for note in notes[50])
    assert not notes[20000]


@pytest.mark.parametrize("words", [{"request_rate": 0.001, "duration": "1m"}, {"rate_curve": "0h:0,12h:0.000001"}])
def test_a_time_in_which_no_request_arrives_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no request arrives in this time"):
        lv.simulate("llama-3.1-8b", "h100-sxm", **words)


def test_a_rate_curve_draws_no_more_requests_than_are_asked_for() -> None:
    # a day at 100 times the rate would have 185 million requests
    found = lv.simulate("llama-3.1-8b", "h100-sxm", rate_curve="0h:3,12h:40", speed_up=100, requests=20)
    assert len(found.records) == 20
    assert found.records.arrival_s[-1] < 1.0  # about 20 at 300 a second


def test_what_ends_the_highest_rate_is_told_from_a_run_just_above_it() -> None:
    """A loose limit: the queue grows before it is reached, while the KV cache is empty; a tight one ends it itself."""
    small = {"input_len": 64, "output_len": 8, "requests": 1000}
    grows = lv.simulate("llama-3.2-1b", "l4", find_rate=True, ttft="p99:900s", max_num_seqs=4, **small)
    ends = grows.to_dict()["beyond"]
    assert ends["saturated"] and not ends["broken"] and ends["kv_cache_occupancy_mean"] < 0.5
    assert "its queue grows, the time of steps bounds it" in " ".join(str(grows).split())
    tight = lv.simulate("llama-3.2-1b", "l4", find_rate=True, tpot="p99:40ms", **small)
    (ended,) = tight.to_dict()["beyond"]["broken"]
    assert ended["metric"] == "tpot_s" and ended["value_s"] > 0.04
    page = " ".join(str(tight).split())
    assert "limited by TPOT p99, " in page and "the KV cache bounds it" not in page


def test_a_few_preemptions_are_no_bound() -> None:
    answer = {"completed": 1000, "saturated": False, "preemptions": 3, "kv_cache_occupancy_mean": 0.4}
    assert simulation_page._bound(answer) == "the KV cache is 40 % full in the mean, and all of it at times"
    assert "bounds it (40 % full)" in simulation_page._bound(answer | {"saturated": True, "preemptions": 100})
    assert "time of steps" in simulation_page._bound(answer | {"saturated": True})
