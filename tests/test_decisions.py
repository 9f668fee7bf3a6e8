"""The score of decisions: hand-worked problems, perfect predictions, and scales that change no order."""

from __future__ import annotations

from math import inf

import numpy as np
import pandas as pd
import pytest

from llmviewer.calibrate import decisions
from llmviewer.calibrate.decisions import Problem, Runs
from llmviewer.planning.chance import probability_within


def runs(ttft_ms: list[float], tpot_ms: list[float], tokens: list[float], width: float = 0.0) -> Runs:
    first, each = np.array(ttft_ms), np.array(tpot_ms)
    bounds = (first * (1 - width), first * (1 + width), each * (1 - width), each * (1 + width)) if width else None
    return Runs(ttft_ms=first, tpot_ms=each, tokens_per_s=np.array(tokens), bounds=bounds)


MEASURED = runs([100, 200, 400], [10, 20, 40], [1000, 1800, 3000])


def problem(predicted: Runs, limits: tuple[float, float] = (300, 30)) -> Problem:
    return Problem(name=("m", 1, 1), limits=limits, measured=MEASURED, predicted=predicted)


def test_a_perfect_prediction_picks_the_best_run() -> None:
    # the third run has most tokens but misses both limits; the second is the best
    one = problem(MEASURED)
    assert decisions.by_prediction(one) == 1
    assert decisions.score([one], decisions.by_prediction) == (1.0, 1.0)


def test_a_slow_run_that_is_picked_has_its_share_of_the_best() -> None:
    # the second is predicted to miss 30 ms, so the first is picked: 1000 of 1800 tokens
    one = problem(runs([100, 200, 400], [10, 31, 40], [1000, 1800, 3000]))
    assert one.judged(decisions.by_prediction(one)) == (True, 1000 / 1800)


def test_a_pick_that_misses_a_limit_scores_nothing() -> None:
    one = problem(runs([100, 200, 290], [10, 20, 29], [1000, 1800, 3000]))
    assert one.judged(decisions.by_prediction(one)) == (False, 0.0)


def test_the_nearest_miss_is_picked_where_no_run_is_predicted_to_meet_the_limits() -> None:
    one = problem(runs([900, 600, 1200], [90, 60, 120], [1000, 1800, 3000]))
    assert decisions.by_prediction(one) == 1


def test_a_probability_asks_for_distance_from_the_limit() -> None:
    # TPOT of the second run is 28 ms against 30 ms: with 80 % within 20 % either way it holds with less than 0.9
    one = problem(runs([100, 200, 400], [10, 28, 40], [1000, 1800, 3000], width=0.2))
    assert decisions.by_prediction(one) == 1
    assert decisions.by_chance(0.9)(one) == 0


def test_both_scales_of_time_leave_the_order_as_it_is() -> None:
    rows = table([10.0, 20.0, 40.0])
    assert decisions.order_score(rows) == (3, 1.0)
    slower = rows.assign(**{name: 3.0 * rows[name] for name in rows if "predicted" in str(name)})
    assert decisions.order_score(slower) == (3, 1.0)
    wrong = rows.assign(**{"tpot predicted": [10.0, 100.0, 40.0], "ttft predicted": [100.0, 1000.0, 400.0]})
    pairs, right = decisions.order_score(wrong)
    assert pairs == 3 and right < 1.0


def table(tpot_ms: list[float]) -> pd.DataFrame:
    """Runs of 8, 24 and 96 users on one device, 101 tokens each."""
    each = np.array(tpot_ms)
    frame = pd.DataFrame(
        {"model": "m", "input_len": "1", "output_len": "101", "batch": ["8", "24", "96"], "n_gpus": "1"}
    )
    for which in ("value", "predicted", "ideal", "low80", "high80"):
        frame[f"ttft {which}"], frame[f"tpot {which}"] = 10.0 * each, each
    return frame


def test_tokens_per_second_and_device_follow_from_both_latencies() -> None:
    # 8 users x 101 tokens / (100 ms + 100 x 10 ms) / 1 device = 734.5
    found = decisions.figures(table([10.0, 20.0, 40.0]), "value")
    assert found.tokens_per_s[0] == pytest.approx(8 * 101 / 1.1)


def test_limits_of_a_problem_are_met_by_some_runs_but_not_by_all() -> None:
    found = list(decisions.problems_of(table([10.0, 20.0, 40.0])))
    assert {one.limits[1] for one in found} == {10.0, 20.0, 30.0}  # at 50 ms every run is within
    assert decisions.score(found, decisions.by_prediction) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1.0, 0.5), (1.2, 0.9), (1 / 1.2, 0.1), (1.2**2, 0.9948), (1e9, 1.0)],
)
def test_the_probability_of_a_limit_is_that_of_a_lognormal(limit: float, expected: float) -> None:
    # 80 % within a factor of 1.2: sigma = ln 1.2 / 1.2816, so that a limit of 1.2^2 is at 2.563 sigma
    ratios = {"80": (1 / 1.2, 1.2)}
    assert probability_within(limit, 1.0, ratios) == pytest.approx(expected, abs=1e-4)


def test_an_interval_without_width_is_certain() -> None:
    assert probability_within(1.0, 0.99, {"80": (1.0, 1.0)}) == 1.0
    assert probability_within(1.0, 1.01, {}) == 0.0
    assert probability_within(inf, 1.0, {"80": (0.9, 1.1)}) == 1.0
