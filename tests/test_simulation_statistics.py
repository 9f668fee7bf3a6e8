"""Statistics of a simulated run: percentiles, warm-up, saturation, load, limits and intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmviewer.core.errors import UserError
from llmviewer.simulation import statistics as stats
from llmviewer.simulation.edges import edge_ratios
from llmviewer.simulation.lengths import lengths_of
from llmviewer.simulation.limits import Limit, limit
from llmviewer.simulation.requests import Gaps, Records, Timeline
from llmviewer.simulation.result import Setting, Simulation
from llmviewer.simulation.run import Outcome, simulate_requests
from llmviewer.simulation.statistics import of_replications, scaled
from llmviewer.simulation.traffic import Traffic, gaps_of
from tests.simulated import Cache, Linear, fleet


def records_of(arrival_s, start_s, finish_s, **more) -> Records:
    """Records of requests of 100 tokens each, whose first token comes when half of their service is over."""
    arrival, start, finish = (np.asarray(times, dtype=np.float64) for times in (arrival_s, start_s, finish_s))
    count = len(arrival)
    columns = {name: np.zeros(count, dtype=np.int64) for name in ("cached_tokens", "preemptions", "replica", "refused")}
    columns |= {"input_len": np.full(count, 100), "output_len": np.full(count, 11)}
    columns |= {"arrival_s": arrival, "start_s": start, "finish_s": finish, "first_token_s": (start + finish) / 2.0}
    return Records(**{**columns, **more})


def single_server(rate: float, count: int = 4000, seed: int = 0, service_s: float = 1.0) -> Records:
    """An M/M/1 queue: Poisson arrivals at `rate`, exponential service with this mean, first come first served."""
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1.0 / rate, count))
    service = random.exponential(service_s, count)
    finish = np.empty(count)
    before = 0.0
    for request in range(count):
        before = finish[request] = max(arrival[request], before) + service[request]
    return records_of(arrival, finish - service, finish)


def outcome_of(records: Records, used_blocks: float = 5.0, blocks: int = 10) -> Outcome:
    """A run of one replica that works while a request is served."""
    columns = dict.fromkeys(("steps", "decoding", "prompt_tokens", "waiting"), np.ones(len(records)))
    used = np.full(len(records), used_blocks)
    line = Timeline(start_s=records.start_s, end_s=records.finish_s, used_blocks=used, **columns)
    nothing = np.zeros(0)
    gaps = Gaps(gap_s=nothing, weights=nothing, at_s=nothing)
    return Outcome(records=records, timelines=(line,), pools=(0,), lanes=(1,), blocks=(blocks,), gaps=gaps)


def test_percentiles_of_requests_interpolate_linearly() -> None:
    """p50 of 1, 2, 3, 4 lies between 2 and 3; p90 at 0.9 x 3 = 2.7 places after the first: 3.7, and p99 at 2.97."""
    found = stats.summary(np.array([4.0, 1.0, 3.0, 2.0]))
    assert found["mean"] == 2.5
    assert found["p50"] == 2.5
    assert found["p90"] == pytest.approx(3.7)
    assert (found["p95"], found["p99"]) == pytest.approx((3.85, 3.97))


def test_what_did_not_happen_has_no_part_in_a_percentile() -> None:
    assert stats.summary(np.array([1.0, np.nan, 3.0]))["mean"] == 2.0
    assert set(stats.summary(np.array([np.nan])).values()) == {None}
    assert set(stats.summary(np.zeros(0), np.zeros(0)).values()) == {None}


def test_weights_count_as_repetitions() -> None:
    """96 gaps of 1 s and 4 of 5 s: the mean is (96 + 20) / 100, and only the last four per cent are 5 s."""
    found = stats.summary(np.array([5.0, 1.0]), np.array([4.0, 96.0]))
    assert found == {"mean": pytest.approx(1.16), "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 5.0}


def test_a_slow_beginning_is_cut() -> None:
    """The first 200 of 1000 requests, one per second, take 50 s instead of about 1 s."""
    noise = np.random.default_rng(0).exponential(1.0, 1000)
    arrival = np.arange(1000.0)
    found = stats.warm_up_s(records_of(arrival, arrival, arrival + noise + np.where(arrival < 200, 50.0, 0.0)))
    assert 200.0 <= found <= 300.0


def test_at_most_half_of_a_run_is_cut() -> None:
    """A latency that falls all the time would leave only the end."""
    arrival = np.arange(1000.0)
    assert stats.warm_up_s(records_of(arrival, arrival, arrival + 1000.0 - 0.9 * arrival)) <= 500.0


def test_equal_latencies_have_no_warm_up() -> None:
    arrival = np.arange(1000.0)
    assert stats.warm_up_s(records_of(arrival, arrival, arrival + 1.0)) == 0.0


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_a_server_with_time_to_spare_is_not_saturated(load: float) -> None:
    assert [seed for seed in range(40) if stats.is_saturated(single_server(load, seed=seed))] == []


@pytest.mark.parametrize("load", [1.2, 2.0])
def test_a_server_that_gets_more_than_it_can_answer_is_saturated(load: float) -> None:
    assert [seed for seed in range(40) if not stats.is_saturated(single_server(load, seed=seed))] == []


def test_the_rate_of_a_saturated_server_is_that_of_its_service() -> None:
    """Service takes 0.5 s in the mean: two requests a second, whatever arrives."""
    found = [stats.capacity(single_server(4.0, seed=seed, service_s=0.5)) for seed in range(10)]
    assert np.mean(found) == pytest.approx(2.0, rel=0.02)


def test_answers_that_take_as_long_as_the_run_are_no_sign_of_saturation() -> None:
    """Each of 1000 requests, one per second, takes 2000 s: their number grows all the time, their latency does not."""
    arrival = np.arange(1000.0)
    assert not stats.is_saturated(records_of(arrival, arrival, arrival + 2000.0))


def test_no_request_means_no_saturation() -> None:
    nothing = np.zeros(0)
    assert not stats.is_saturated(records_of(nothing, nothing, nothing))


def test_running_and_waiting_requests_obey_littles_law() -> None:
    """Requests in the system = arrivals per second x time in it, exactly, over a run that begins and ends empty."""
    records = single_server(0.7)
    window = stats.whole_run(records)
    found = stats.load(outcome_of(records), window)
    in_system = found["running_mean"] + found["waiting_mean"]
    assert in_system == pytest.approx(len(records) / window.length_s * records.e2e_s.mean())
    assert found["utilization"] == pytest.approx(found["running_mean"])  # one server: it runs one request or none


def test_occupancy_is_weighted_by_time() -> None:
    """Half of the blocks while it serves 2 s of 4 s: a quarter."""
    records = records_of([0.0, 3.0], [0.0, 3.0], [1.0, 4.0])
    found = stats.load(outcome_of(records, used_blocks=5.0, blocks=10), stats.whole_run(records))
    assert found["kv_cache_occupancy_mean"] == pytest.approx(0.25)
    assert found["output_tokens_per_s"] == pytest.approx(22 / 4)
    assert found["requests_per_s"] == pytest.approx(2 / 4)


def test_occupancy_and_utilization_are_means_over_replicas() -> None:
    """Two replicas hold half of their blocks all the time, a third one none and works never."""
    one = outcome_of(records_of([0.0], [0.0], [4.0]), used_blocks=5.0, blocks=10)
    (line,) = one.timelines
    idle = replace(line, end_s=line.start_s)
    found = stats.load(
        replace(one, timelines=(line, line, idle), pools=(0, 0, 0), blocks=(10, 10, 10)), stats.whole_run(one.records)
    )
    assert found["kv_cache_occupancy_mean"] == pytest.approx(1 / 3)
    assert found["utilization"] == pytest.approx(2 / 3)


def test_the_hit_rate_is_of_prompt_tokens() -> None:
    """50 cached tokens of two prompts of 100."""
    records = records_of([0.0, 1.0], [0.0, 1.0], [1.0, 2.0], cached_tokens=np.array([0, 50]))
    assert stats.load(outcome_of(records), stats.whole_run(records))["prefix_hit_rate"] == 0.25


def test_the_load_is_that_of_the_time_in_which_requests_arrive() -> None:
    """Ten requests at once at 0 s and one at 10 s: by then all but the last have been answered."""
    arrival = np.append(np.zeros(10), 10.0)
    start = np.append(np.arange(10.0) * 0.5, 10.0)
    records = records_of(arrival, start, start + 0.5)
    found = stats.load(outcome_of(records), stats.steady_window(records, 0.0, 0))
    assert found["requests_per_s"] == pytest.approx(11 / 10)  # eleven arrive in ten seconds, and are answered


def test_throughput_is_that_of_the_time_after_the_warm_up() -> None:
    """One request a second for 100 s, of 11 tokens each; of the last 60 s 61 are counted, the one at 40 s included."""
    arrival = np.arange(101.0)
    records = records_of(arrival, arrival, arrival + 0.5)
    found = stats.load(outcome_of(records), stats.steady_window(records, 40.0, 0))
    assert found["output_tokens_per_s"] == pytest.approx(61 * 11 / 60)
    assert found["requests_per_s"] == pytest.approx(61 / 60)


def test_parts_hold_equally_many_requests_each() -> None:
    records = single_server(0.5, count=2000)
    found = stats.parts(records, stats.whole_run(records))
    assert {int(part.chosen.sum()) for part in found} == {100}
    assert np.array_equal(np.sum([part.chosen for part in found], axis=0), np.ones(2000))


def test_goodput_holds_each_request_to_all_limits() -> None:
    """First tokens after 0.5, 1 and 1.5 s, the whole after 1, 2 and 3 s."""
    records = records_of([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0])
    limits = (
        Limit(metric="ttft_s", statistic="p99", seconds=1.2),
        Limit(metric="e2e_s", statistic="mean", seconds=1.5),
    )
    everything = np.ones(3, dtype=np.bool_)
    assert stats.meets(records, everything, limits[:1]).tolist() == [True, True, False]
    assert stats.meets(records, everything, limits).tolist() == [True, False, False]
    assert stats.meets(records, everything, limits[::-1]).tolist() == [True, False, False], "in any order"


def test_limits_of_a_run_are_judged_by_their_statistic() -> None:
    latencies = {"ttft_s": {"mean": 1.0, "p99": 3.0}}
    kept, exceeded = (Limit(metric="ttft_s", statistic=name, seconds=2.0) for name in ("mean", "p99"))
    assert stats.broken(latencies, (kept, exceeded)) == (exceeded,)
    assert stats.broken({"ttft_s": {"mean": None}}, (kept,)) == (kept,), "an unknown value holds no limit"


def test_a_limit_is_of_the_mean_unless_it_names_a_statistic() -> None:
    assert limit("ttft", "2s") == Limit(metric="ttft_s", statistic="mean", seconds=2.0)
    assert limit("tpot", "p99:80ms") == Limit(metric="tpot_s", statistic="p99", seconds=0.08)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p98:2s", "unknown statistic of ttft 'p98'"),
        ("p99:", "allowed: a time such as"),
        ("p99:-1s", "allowed: a time such as"),
        ("0s", "allowed"),
        ("soon", "allowed: a time such as"),
    ],
)
def test_a_wrong_limit_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as found:
        limit("ttft", text)
    assert "\n" not in str(found.value)


def test_the_interval_of_replications_is_students() -> None:
    """Two runs with means 1 and 3: 2 ± t x 1, where the standard error is sqrt(2) / sqrt(2) and t(80 %, 1) = 3.078."""
    runs = [dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), value) for value in (10.0, 12.0)]
    whole = dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 11.0)
    found = of_replications(runs, whole)
    assert found["mean"]["80"] == pytest.approx([11.0 - 3.078, 11.0 + 3.078])
    assert found["p99"]["95"] == pytest.approx([0.0, 11.0 + 12.706]), "no latency is negative"
    assert of_replications(runs[:1], whole)["mean"]["80"] == [None, None]


def test_the_interval_of_parts_holds_the_mean_of_many_runs() -> None:
    """At least 80 % intervals of an M/M/1 queue at half load hold its mean time of 2 s in most of 40 runs."""
    held = 0
    for seed in range(40):
        records = single_server(0.5, count=4000, seed=seed)
        parts = [stats.summary(records.e2e_s[part.chosen]) for part in stats.parts(records, stats.whole_run(records))]
        low, high = of_replications(parts, stats.summary(records.e2e_s))["mean"]["80"]
        held += low <= 2.0 <= high
    assert 26 <= held <= 38


def test_the_interval_of_the_calibration_is_in_proportion() -> None:
    whole = {"mean": 2.0, "p50": None, "p90": 1.0, "p95": 1.0, "p99": 4.0}
    found = scaled(whole, {"80": (0.9, 1.2)})
    assert found["mean"] == {"80": [1.8, 2.4]}
    assert found["p99"] == {"80": [3.6, 4.8]}
    assert found["p50"] == {"80": [None, None]}


def one_at_a_time(utilization: float, count: int) -> Simulation:
    """A server that takes 1 s for each request, give or take a tenth, and requests at this rate [1/s]."""
    prices, room = Linear(step=0.0, sequence=1.0, cached=0.0, prompt=0.0, pair=0.0), Cache(max_sequences=1)
    traffic = Traffic(
        input_len=lengths_of("input_len", "1"),
        output_len=lengths_of("output_len", "2"),
        gaps=gaps_of("poisson"),
        rate=utilization,
        count=count,
    )
    served = fleet(prices, room)
    outcome = simulate_requests(traffic.requests(), served)
    words = Setting(
        model="m", hardware="h", engine="e", efficiency="calibrated", schedulers=("vllm",), layout="", workload=""
    )
    ratios = {name: {"80": (0.9, 1.1)} for name in ("ttft_s", "tpot_s", "e2e_s")}
    return Simulation(
        setting=words,
        fleet=served,
        traffic=traffic,
        outcomes=(outcome,),
        ratios=ratios,
        warm_up_s=0.0,
        near_capacity=edge_ratios,
    )


def test_an_interrupt_leaves_no_interval_of_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = one_at_a_time(0.95, 300)

    def interrupted(driven: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmviewer.simulation.run.drive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        edge_ratios(made)


def waits_s(arrivals: np.ndarray, service_s: float) -> float:
    """Mean wait by Lindley's recursion, of requests that take equally long [s]."""
    walk = np.append(0.0, np.cumsum(service_s - np.diff(arrivals)))
    return float((walk - np.minimum.accumulate(walk)).mean())


@pytest.mark.parametrize("utilization", [0.85, 0.95])
def test_the_interval_at_the_edge_of_capacity_is_that_of_slow_and_fast_service(utilization: float) -> None:
    """M/D/1 with 0.9 s waits u s / 2 (1 - u) in the mean, u = 0.765 or 0.855; with 1.1 s at 0.95 / s it never ends.

    Its own interval in proportion to the time of a request would be a tenth to either side.
    """
    made = one_at_a_time(utilization, 20000)
    value = made.latencies()["ttft_s"]["mean"]
    assert value is not None
    arrivals = made.records.arrival_s
    low, high = made.intervals()["calibration"]["ttft_s"]["mean"]["80"]
    assert low == pytest.approx(waits_s(arrivals, 0.9), rel=0.01)
    assert high == pytest.approx(waits_s(arrivals, 1.1), rel=0.01)
    busy = 0.9 * utilization
    assert low == pytest.approx(busy * 0.9 / (2.0 * (1.0 - busy)), rel=0.15)
    assert low < 0.6 * value and high > 2.0 * value


def test_the_interval_far_below_the_capacity_is_in_proportion() -> None:
    made = one_at_a_time(0.3, 2000)
    value = made.latencies()["e2e_s"]["mean"]
    assert value is not None
    assert made.intervals()["calibration"]["e2e_s"]["mean"]["80"] == pytest.approx([0.9 * value, 1.1 * value])
