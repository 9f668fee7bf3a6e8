"""Requests are drawn as their options say: arrivals, lengths, number, and the same ones for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmviewer.core.errors import UserError
from llmviewer.simulation.options import LOAD, checked, traffic_of
from llmviewer.simulation.requests import Requests
from tests.test_traces import AZURE, MOONCAKE, lines_of, written


def drawn(**words: Any) -> Requests:
    return traffic_of(checked(words)).requests()


@pytest.mark.parametrize(("arrivals", "variation"), [("poisson", 1.0), ("gamma,cv=2", 2.0), ("fixed", 0.0)])
def test_gaps_have_the_rate_and_the_coefficient_of_variation(arrivals: str, variation: float) -> None:
    gaps = np.diff(drawn(request_rate=20.0, arrivals=arrivals, requests=40_000).arrival_s)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.05)


def test_a_run_lasts_ten_minutes_or_two_thousand_requests() -> None:
    assert len(drawn(request_rate=0.1)) == 2000
    assert drawn(request_rate=10.0).arrival_s[-1] == pytest.approx(600.0, abs=1.0)
    assert len(drawn(request_rate=10.0, requests=70)) == 70
    assert drawn(request_rate=10.0, duration="90s").arrival_s[-1] == pytest.approx(90.0, abs=1.0)
    assert len(drawn(concurrency=500)) == 5000


@pytest.mark.parametrize("rate", [2.0, 1e6])
def test_the_sooner_of_a_duration_and_a_number_ends_a_run(rate: float) -> None:
    """100 of 3.6 billion requests are a run of 100."""
    made = drawn(request_rate=rate, requests=100, duration="1h")
    assert len(made) == 100 and made.arrival_s[-1] == pytest.approx(100 / rate, rel=0.3)
    short = drawn(request_rate=rate, requests=100, duration=f"{50.5 / rate:.9f}s", arrivals="fixed")
    assert len(short) == 50 and short.arrival_s[-1] == pytest.approx(50 / rate)


def test_lengths_have_the_mean_and_the_variation_of_their_distribution() -> None:
    asked = drawn(request_rate=100.0, input_len="lognormal,mean=1000,cv=0.8", output_len="uniform,low=1,high=99")
    assert asked.input_len.mean() == pytest.approx(1000.0, rel=0.02)
    assert asked.input_len.std() / asked.input_len.mean() == pytest.approx(0.8, rel=0.03)
    assert (asked.output_len.min(), asked.output_len.max()) == (1, 99)
    assert asked.output_len.mean() == pytest.approx(50.0, rel=0.02)
    assert drawn(request_rate=1.0, input_len="lognormal,mean=1000,cv=2,max=2000").input_len.max() == 2000


def test_the_rate_follows_the_curve_of_the_day() -> None:
    asked = drawn(rate_curve="0h:1,8h:3,20h:0")
    counts, _ = np.histogram(asked.arrival_s, bins=np.array([0.0, 8.0, 20.0, 24.0]) * 3600.0)
    assert counts[:2] == pytest.approx([8 * 3600, 3 * 12 * 3600], rel=0.02)
    assert counts[2] == 0


def test_a_curve_and_a_closed_loop_over_a_trace_keep_to_the_number_of_requests(tmp_path: Path) -> None:
    assert len(drawn(rate_curve="0h:2,8h:10", requests=100)) == 100
    asked = drawn(trace=str(written(tmp_path, AZURE)), concurrency=2)
    assert (asked.concurrency, asked.arrival_s.tolist()) == (2, [0.0, 0.0, 0.0])


def test_seeds_and_replications_differ_and_repeat() -> None:
    traffic = traffic_of(checked({"request_rate": 5.0}))
    first, again, other = traffic.requests(0), traffic.requests(0), traffic.requests(1)
    np.testing.assert_array_equal(first.arrival_s, again.arrival_s)
    assert not np.array_equal(first.arrival_s[:50], other.arrival_s[:50])
    assert not np.array_equal(first.arrival_s[:50], drawn(request_rate=5.0, seed=1).arrival_s[:50])


def test_a_trace_is_sped_up_and_cut(tmp_path: Path) -> None:
    path = str(written(tmp_path, AZURE))
    assert drawn(trace=path, speed_up=2.0, requests=2).arrival_s.tolist() == pytest.approx([0.0, 4.314579 / 2])
    assert len(drawn(trace=path, duration="1m")) == 2


def test_a_trace_keeps_its_prefixes(tmp_path: Path) -> None:
    asked = drawn(trace=str(written(tmp_path, lines_of(MOONCAKE))))
    assert (asked.prefixes, asked.prefix_tokens) == (((46, 47), (46, 48)), 512)


def test_pairs_of_lengths_are_drawn_from_a_file(tmp_path: Path) -> None:
    asked = drawn(request_rate=10.0, lengths=str(written(tmp_path, AZURE)))
    assert set(zip(asked.input_len.tolist(), asked.output_len.tolist(), strict=True)) == {
        (374, 44),
        (396, 109),
        (10, 1),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "nothing says when requests arrive"),
        ({"request_rate": 0}, "request_rate is 0; allowed: a number above 0"),
        ({"request_rate": "nan"}, "request_rate is nan"),
        ({"request_rate": -3.0}, "request_rate is -3.0"),
        ({"request_rate": 1.0, "concurrency": 3}, "both say when requests arrive"),
        ({"request_rate": 1.0, "arrivals": "poison"}, "did you mean 'poisson'?"),
        ({"request_rate": 1.0, "arrivals": "gamma"}, "cv"),
        ({"request_rate": 1.0, "input_len": "unifrom,low=1,high=2"}, "did you mean 'uniform'?"),
        ({"request_rate": 1.0, "input_len": "uniform,low=9,high=2"}, "low at most high"),
        ({"request_rate": 1.0, "input_len": 0}, "input_len is 0"),
        ({"request_rate": 1.0, "duration": "10 parsecs"}, "duration is '10 parsecs'; allowed: a time"),
        ({"request_rate": 1.0, "duration": "inf"}, "duration is 'inf'"),
        ({"request_rate": 1e6, "duration": "1d"}, "allowed: at most 10,000,000"),
        ({"request_rate": 1.0, "speed_up": 2.0}, "speed_up is of a trace or a curve"),
        ({"concurrency": 4, "duration": "1m"}, "give requests instead"),
        ({"rate_curve": "0h:1,8h"}, "rate_curve"),
        ({"rate_curve": "3h:1"}, "from 0h on"),
        ({"rate_curve": "0h:2", "duration": "1e9d"}, "allowed: at most 10,000,000"),
        ({"concurrency": 20_000_000}, "allowed: at most 10,000,000"),
        ({"request_rate": 1e-310}, "allowed: a number above 0"),
        ({"seed": -1, "request_rate": 1.0}, "seed is -1"),
    ],
)
def test_contradictions_and_wrong_values_are_one_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        drawn(**words)
    assert message in str(caught.value)


def test_every_option_has_a_help_of_one_line() -> None:
    for option in LOAD.values():
        assert option.help.endswith((".", "...")) and len(option.help) < 120
