"""Sizing: highest rates are those of the search, every point of the front holds, and a full server is a warning."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.planning import verification
from llmviewer.planning.capacities import Bracket, capacity_notes, highest, scaled_text, simulated_words
from llmviewer.planning.chance import chance_of
from llmviewer.planning.choices import Choice
from llmviewer.planning.sizing import Sizing
from llmviewer.planning.space import Structure, has_few_bits, structures
from llmviewer.reports import sizing_page
from llmviewer.simulation import call
from llmviewer.simulation.call import run_all
from llmviewer.simulation.limits import TOLERANCE
from llmviewer.simulation.traffic import Traffic

#: One replica of several; all of its own length; two pools; a chip whose runs are cut by their number of requests.
QUESTIONS: dict[str, dict[str, Any]] = {
    "replicas": {
        "model": "llama-3.1-8b", "hardware": "l40s", "request_rate": 10, "input_len": 1000, "output_len": 200,
        "ttft": "p99:1s", "tpot": "p99:50ms", "batching": "continuous", "quantization": "fp8", "kv_cache_dtype": "auto",
        "tensor_parallel_size": "1", "requests": 3000,
    },
    "distributions": {
        "model": "llama-3.1-8b", "hardware": "a100-80gb-sxm", "request_rate": 5, "e2e": "p95:20s", "requests": 2000,
        "input_len": "lognormal,mean=2000,cv=0.5", "output_len": "uniform,low=100,high=500", "batching": "continuous",
    },
    "pools": {
        "model": "llama-3.1-8b", "hardware": "h100", "request_rate": 30, "input_len": 2000, "output_len": 200,
        "ttft": "p99:500ms", "tpot": "p99:15ms", "batching": "disaggregated", "quantization": "fp8", "requests": 2000,
        "confidence": 0,
    },
    "small": {
        "model": "llama-3.2-1b", "hardware": "h100,l40s", "request_rate": 60, "input_len": 1000, "output_len": 200,
        "ttft": "p99:300ms", "tpot": "p99:12ms", "requests": 600,
    },
}  # fmt: skip


#: Two of the questions in every run of the tests, the longer two where there is time.
NAMES: list[Any] = [
    "replicas",
    "small",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("distributions", "pools")),
]


@cache
def sized(name: str) -> Sizing:
    return lv.size(**QUESTIONS[name])


def found_rate(words: dict[str, Any], model: str) -> float:
    found = lv.simulate(model, find_rate=True, **words).max_request_rate
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_head_room_is_what_find_rate_finds_with_the_same_options(name: str) -> None:
    made = sized(name)
    best = made.best
    assert best is not None and best.head_room is not None
    expected = found_rate(simulated_words(made.question, best), made.question.model_name)
    told = made.to_dict()["best"]["max_request_rate_per_server"]
    assert told == pytest.approx(expected, rel=TOLERANCE)
    # every server gets the same share of the load
    asked = made.question.workload.rate
    assert best.head_room == pytest.approx(told * best.servers / asked - 1.0)


def test_a_search_with_few_requests_knows_which_rates_are_sustained() -> None:
    """600 requests at 75 a second are sent in 8 s, of which each takes one: their last third seems a growing load.

    Rates are sustained up to one, which is that of 4,000 requests; the page names the requests that were needed.
    """
    words = {"engine": "vllm", "input_len": 1000, "output_len": 200, "ttft": "p99:300ms", "tpot": "p99:15ms"}
    made = call.prepared("llama-3.2-1b", "h100", request_rate=60, requests=600, **words).made

    def holds(rate: float) -> bool:
        traffic = made.traffic.searched(rate)
        return call.lasting(replace(made, traffic=traffic, outcomes=tuple(run_all(made.fleet, traffic, 1)))).holds

    kept = [holds(float(rate)) for rate in range(55, 130, 5)]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] and not kept[-1]
    few, many = (lv.simulate("llama-3.2-1b", "h100", find_rate=True, requests=count, **words) for count in (600, 4000))
    assert few.max_request_rate == pytest.approx(many.max_request_rate, rel=0.1)
    assert few.holds and len(few.records) > 600
    assert any("needs more requests" in note for note in few.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replicas", "distributions", "pools"])
@pytest.mark.parametrize(("change", "factor"), [("-25 %", 0.75), ("+25 %", 1.25)])
def test_rates_with_other_lengths_are_what_find_rate_finds(name: str, change: str, factor: float) -> None:
    made = sized(name)
    best = made.best
    assert best is not None
    for option in ("input_len", "output_len"):
        words = simulated_words(made.question, best)
        words[option] = scaled_text(str(words[option]), factor)
        expected = found_rate(words, made.question.model_name)
        assert made.sensitivity[option][change] / best.servers == pytest.approx(expected, rel=TOLERANCE)


def test_replicas_at_another_rate_are_the_fewest_that_hold_there() -> None:
    made = sized("replicas")
    best = made.best
    assert best is not None
    for change, factor in (("-25 %", 0.75), ("+25 %", 1.25)):
        replicas = made.sensitivity["request_rate"][change]
        fewer = replicas - 1.0
        for count in (replicas, fewer):
            words = {**simulated_words(made.question, best), "request_rate": 10 * factor / count} if count else {}
            again = lv.simulate("llama-3.1-8b", **words) if count else None
            chance = chance_of(again.limits, again.latencies(), again.ratios) if again else None
            holds = again is not None and again.holds and chance is not None and chance >= 0.9
            assert holds == (count == replicas)


def test_lengths_are_scaled_by_their_tokens_alone() -> None:
    assert scaled_text("2000", 0.75) == "1500"
    assert scaled_text("2k", 0.5) == "1024"  # as typed there, 2k is 2,048
    assert scaled_text("1", 0.75) == "1"  # no request is empty
    assert scaled_text("lognormal,mean=2000,cv=0.5,max=8000", 1.25) == "lognormal,mean=2500,cv=0.5,max=10000"
    assert scaled_text("uniform,low=100,high=300", 0.75) == "uniform,low=75,high=225"


@pytest.mark.parametrize("guess", [0.3, 7.9, 10.0, 11.0, 400.0])
@pytest.mark.parametrize("slope", [0.2, 1.0, 30.0])
def test_the_search_ends_within_its_tolerance_from_any_guess(guess: float, slope: float) -> None:
    """The excess is (rate / 10) ** slope, and unknown from 13 requests/s on, where the server is saturated."""
    runs = []

    def excess(rate: float) -> float:
        runs.append(rate)
        return (rate / 10.0) ** slope if rate < 13.0 else float("inf")

    found = highest(excess, guess, Bracket())
    assert 10.0 * (1.0 - TOLERANCE) <= found.low <= 10.0 <= found.high
    assert len(runs) <= 16 + abs(log(guess / 10.0))


def test_a_guess_that_just_fails_is_two_runs() -> None:
    """The excess says that the limit is near, so the next rate is as far below as ends the search."""
    runs = []

    def excess(rate: float) -> float:
        runs.append(rate)
        return float((rate / 10.0) ** 8.0)

    found = highest(excess, 10.01, Bracket(low=8.0, below=0.8**8.0))
    assert found.low <= 10.0 <= found.high <= found.low / (1.0 - TOLERANCE)
    assert len(runs) == 2


def test_a_run_that_found_the_number_of_replicas_is_not_repeated_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 requests are as many in a probe as in a whole run; every number of replicas is simulated once."""
    rates = []

    def counted(fleet: Any, traffic: Traffic, replications: int) -> Any:
        rates.append(traffic.mean_rate)
        return run_all(fleet, traffic, replications)

    made = sized("replicas")
    assert made.best is not None
    (point, _), *_ = made.best.parts
    monkeypatch.setattr(verification, "run_all", counted)
    monkeypatch.setattr(call, "run_all", counted)
    load = replace(made.question.load, words={**made.question.load.words, "requests": 1000})
    found = verification.verified(made.question.model, point, load, made.question.bounds)
    assert rates and len(set(rates)) == len(rates)
    whole = lv.simulate(
        made.question.model, point.screened.hardware, **found.words, **load.words, request_rate=found.rate
    )
    assert found.latencies["tpot_s"] == whole.to_dict()["tpot_s"]


def test_no_rate_is_found_where_none_holds() -> None:
    assert highest(lambda rate: 2.0, 5.0, Bracket()).low == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_every_point_of_the_front_holds_in_its_own_simulation(name: str) -> None:
    made = sized(name)
    assert made.front
    for one in made.front:
        assert one.simulated
        again = lv.simulate(made.question.model, **simulated_words(made.question, one))
        assert again.holds
        assert again.latencies()["tpot_s"]["mean"] == one.mean_tpot_s


@pytest.mark.parametrize("name", NAMES)
def test_no_fleet_on_the_front_is_beyond_twice_the_winner(name: str) -> None:
    """One replica of a larger layout is no fleet: it has no idle ones."""
    made = sized(name)
    assert made.best is not None
    assert [one for one in made.front if one.servers > 1 and one.devices > 2 * made.best.devices] == []


def test_a_rate_above_95_percent_of_the_highest_is_a_warning() -> None:
    """At 10 requests/s: the highest rate 10.5 is 95.2 % full, 10.6 is 94.3 %."""
    made = sized("replicas")
    best = made.best
    assert best is not None
    full, spare = (replace(best, searched_rate=rate / best.servers) for rate in (10.5, 10.6))
    assert "10 requests/s are 95% of the most" in capacity_notes(made.question, full)[0]
    assert capacity_notes(made.question, spare) == ()


def test_limits_hold_with_probability_nine_tenths_unless_another_is_asked() -> None:
    made = sized("replicas")
    assert made.to_dict()["request"]["confidence"] == 0.9
    assert made.best is not None and made.best.probability is not None and made.best.probability >= 0.9
    assert made.best.devices <= lv.size(**QUESTIONS["replicas"], confidence=0.999).best.devices  # type: ignore[union-attr]


def test_devices_that_only_errors_of_the_times_ask_for_are_told() -> None:
    """No kernel was measured on an MI300X: what the prediction needs of it is far less than what is nearly sure."""
    server = {"quantization": "none", "kv_cache_dtype": "auto", "tensor_parallel_size": 1, "batching": "continuous"}
    load = {"request_rate": 10, "requests": 300, "ttft": "p99:1s", "tpot": "p99:15ms"}
    sure, predicted = (lv.size("llama-3.1-8b", "mi300x", confidence=at, **server, **load) for at in (0.9, 0))
    assert sure.best is not None and predicted.best is not None
    assert sure.best.devices >= 2 * predicted.best.devices == 2 * sure.best.predicted_devices
    (told,) = (note for note in sure.notes if "by the prediction" in note)
    assert told.startswith(f"mi300x: 1 device holds the limits by the prediction; {sure.best.devices} hold them with")
    assert not any("by the prediction" in note for note in predicted.notes)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "--request-rate 1e-10 --ttft 1s",
            "--request-rate is 1e-10; allowed: a number above 0, such as 20, 1e9 or 1b, at least 1e-09",
        ),
        (
            "--ttft 1s",
            "nothing says when requests arrive; give one of --request-rate, --concurrency, --rate-curve, --trace",
        ),
        ("--ttft 1s --sessions turns=2,first=9,output=9", "; --concurrency 1 sizes for one session, and its"),
        ("--request-rate 5 --ttft 1s --emit vllm --format json", "prints a manifest; remove --format"),
        ("--request-rate 5 --ttft 1s --emit vllm --efficiency ideal", "remove --efficiency ideal"),
        ("--request-rate 5 --ttft 1s --tensor-parallel-size 1,2.5", "2.5"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_line(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size", "llama-3.2-1b", "--hardware", "h100", *line.split()]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert told in said.err


def test_formats_of_4_bits_are_searched_where_the_chip_has_kernels_and_marked() -> None:
    """NVFP4 on Blackwell, AWQ on NVIDIA's chips from Turing on, none on V100 and on chips of AMD."""
    words = {"b200": {"nvfp4"}, "h100-sxm": {"awq"}, "t4": {"awq"}, "v100-32gb-sxm": set(), "mi300x": set()}
    for chip, formats in words.items():
        tried = {one.options.get("quantization", "none") for one in structures("llama-3.2-1b", chip, {}, 1)}
        assert {name for name in tried if has_few_bits(name)} == formats
    listed = lv.size("llama-3.2-1b", "h100", request_rate=5, requests=200, ttft="p99:1s", quantization="awq")
    answer = listed.to_dict()
    assert answer["best"]["quality_not_judged"] is True
    assert any("awq" in note and "not judged" in note for note in answer["notes"])
    assert answer["against"]["wider"]["configuration"] is None  # only awq was allowed
    tables = [
        part for part in sizing_page.page(listed) if getattr(part, "title", "") in ("Best of each chip", "Pareto front")
    ]
    assert tables and all("*: 4-bit weights" in str(getattr(table, "note", "")) for table in tables)
    assert sized("replicas").to_dict()["best"]["quality_not_judged"] is False


def test_two_pools_are_compared_with_one() -> None:
    made = sized("pools")
    answer = made.to_dict()
    found = answer["against"]["aggregated"]
    other = found["configuration"]
    assert "pools" not in other["options"]
    assert found["ratio"] == pytest.approx(other["usd_per_hour"] / answer["best"]["usd_per_hour"])
    beside = made.against["aggregated"].other
    assert beside is not None
    again = lv.simulate(made.question.model, **simulated_words(made.question, beside))
    assert again.holds
    assert "against" not in sizing_page.verdict(sized("replicas").to_dict())
    assert "; against aggregated: " in sizing_page.verdict(answer)


def test_groups_span_nodes_where_a_network_is_named() -> None:
    """DeepSeek-V3 has 671 GB in FP8, a node of H100 has 640."""
    named = {"network": ("infiniband-ndr",), "kv_cache_dtype": ("auto",)}
    degrees = {
        one.configuration.system.parallelism.devices
        for one in structures("deepseek-v3", "h100-sxm", named, 64)
        if isinstance(one, Structure)
    }
    assert max(degrees) == 32
    alone = lv.size("deepseek-v3", "h100", request_rate=1, requests=200, ttft="p99:2s", tensor_parallel_size=8)
    assert "--network lets a group span nodes" in alone.rejected[0].gate.text


def test_sessions_in_progress_follow_littles_law() -> None:
    """8 turns/s are one session of 8 turns a second, which lasts 8 x 5 s and pauses for 60 s: 100, on 4 $/h 25 each."""
    one = Choice(
        model="m", hardware="h100", devices=2, replicas=2, options={}, rate=3.0, ttft_s=1.0, tpot_s=0.01, e2e_s=5.0,
        tokens_per_s=600.0, capacity=8.0, prompt_share=0.5, spare=0, output_len=100.0, input_len=1000.0,
        usd_per_hour=4.0, mean_e2e_s=5.0, turns=8.0, pauses_s=60.0,
    )  # fmt: skip
    told = one.to_dict()
    assert (told["sessions_held"], told["sessions_per_usd_hour"]) == pytest.approx((100.0, 25.0))
    assert replace(one, usd_per_hour=None).to_dict()["sessions_per_usd_hour"] is None
    assert "sessions_held" not in replace(one, turns=0.0).to_dict()
