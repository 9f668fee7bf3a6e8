"""Pipelines that are simulated: steps of micro-batches on their stages, worked by hand and beside other servers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

import llmviewer as lv
from llmviewer.simulation.pipeline import Pipeline, round_s
from llmviewer.simulation.replica import Replica
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import Driven, drive, simulate_requests
from tests.simulated import Cache, Linear, fleet, poisson, requests
from tests.test_simulation_laws import loads

#: A prompt of 64 tokens fills a step.
ROOM = Cache(token_budget=64)


def seconds(*shares: float) -> Linear:
    """A step takes one second, whatever is in it, of which every stage has a share."""
    return Linear(step=1.0, sequence=0.0, cached=0.0, prompt=0.0, pair=0.0, shares=shares)


def test_micro_batches_follow_each_other_through_even_stages() -> None:
    """The second prompt enters half a second after the first, and so do all its steps: 1, 2, 3 and 1.5, 2.5, 3.5 s."""
    records = simulate_requests(requests([0.0, 0.0], 64, 3), fleet(seconds(0.5, 0.5), ROOM, stages=2)).records
    assert records.first_token_s.tolist() == [1.0, 1.5]
    assert records.finish_s.tolist() == [3.0, 3.5]


def test_the_busiest_stage_makes_the_others_wait() -> None:
    """Stages of 0.25 and 0.75 s: the second one ends a step every 0.75 s: at 1, 1.75, 2.5, 3.25, 4 and 4.75 s."""
    records = simulate_requests(requests([0.0, 0.0], 64, 3), fleet(seconds(0.25, 0.75), ROOM, stages=2)).records
    assert records.first_token_s.tolist() == [1.0, 1.75]
    assert records.finish_s.tolist() == [4.0, 4.75]


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    """Four chunks enter every quarter of a second: the last one ends after 1.75 s; on one device after 4 s."""
    asked = requests([0.0], 256, 1)
    assert simulate_requests(asked, fleet(seconds(*[0.25] * 4), ROOM, stages=4)).records.finish_s.tolist() == [1.75]
    assert simulate_requests(asked, fleet(seconds(1.0), ROOM)).records.finish_s.tolist() == [4.0]


def test_a_long_step_holds_up_those_behind_it() -> None:
    """Stages of half a step; a prompt of 4 s enters at 2.5 s behind the third step of the other micro-batch.

    It leaves the stages at 4.5 and 6.5 s; the fourth step, ready at 3 s, follows it and ends at 7 s, the last at 8 s.
    """
    prices = Linear(step=0.0, sequence=1.0, cached=0.0, prompt=0.0625, pair=0.0, shares=(0.5, 0.5))
    served = fleet(prices, Cache(token_budget=128), stages=2)
    records = simulate_requests(requests([0.0, 2.25], [16, 64], [5, 1]), served).records
    assert records.first_token_s.tolist() == [1.0, 6.5]
    assert records.finish_s.tolist() == [8.0, 6.5]


def test_a_round_is_the_longest_step_or_the_work_of_the_busiest_stage() -> None:
    assert round_s([1.0, 2.0], [(0.5, 0.5), (0.5, 0.5)]) == 2.0
    assert round_s([2.0, 2.0], [(0.25, 0.75), (0.25, 0.75)]) == 3.0
    assert round_s([1.0], [(0.4, 0.6)]) == 1.0


@settings(max_examples=200, deadline=None)
@given(asked=loads())
def test_one_micro_batch_on_one_stage_is_a_replica(asked: Requests) -> None:
    served = fleet(Linear(), Cache(blocks=60, max_sequences=9, token_budget=100))
    asked = replace(asked, concurrency=0)  # a replica runs one step more before it looks at what a user sends in it
    asked = asked.select(np.flatnonzero(simulate_requests(asked, served).records.refused == 0))
    plain, staged = Driven.of(asked, served), Driven.of(asked, served)
    (station,) = staged.stations
    station.units = staged.units = [Pipeline(station.replicas, station.pool.prices)]
    drive(plain)
    drive(staged)
    for name in ("start_s", "first_token_s", "finish_s", "cached_tokens", "preemptions"):
        ours, expected = (getattr(one.records(), name) for one in (staged, plain))
        assert ours == pytest.approx(expected, rel=1e-9, nan_ok=True), name


class StepByStep(Pipeline):
    """Runs every step on its own."""

    def _jump(self, lane: Replica, end_s: float) -> bool:
        return False


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.2, 0.5, 0.3)])
@pytest.mark.parametrize("rate", [5.0, 25.0])
def test_jumps_over_rounds_are_the_steps_one_by_one(shares: tuple[float, ...], rate: float) -> None:
    """In the mean: a jump takes rounds for steady from the first one on, and ends with one."""
    asked, served = poisson(rate, 400), fleet(Linear(shares=shares), Cache(), stages=len(shares))
    jumping, stepping = (Driven.of(asked, served) for _ in range(2))
    (station,) = stepping.stations
    station.units = stepping.units = [StepByStep(unit.ranks, station.pool.prices) for unit in station.units]
    drive(jumping)
    drive(stepping)
    for name in ("ttft_s", "e2e_s"):
        ours, expected = (np.mean(getattr(one.records(), name)) for one in (jumping, stepping))
        assert ours == pytest.approx(expected, rel=0.02), name


def test_a_pipeline_is_reported_as_one_replica_whose_micro_batches_share_the_cache() -> None:
    made = lv.simulate("llama-3.1-8b", "h100", engine="vllm", pipeline_parallel_size=2, concurrency=8, requests=64)
    told = made.to_dict()
    assert told["devices"] == 2
    (outcome,) = made.outcomes
    assert len(outcome.timelines) == 2 == outcome.lanes[0]
    assert set(made.records.replica.tolist()) == {0}
    # the sequences of the middle of the run hold their prompts and half of their answers
    held = told["running_mean"] * (1024 + 64) / (16 * outcome.blocks[0])
    assert told["kv_cache_occupancy_mean"] == pytest.approx(held, rel=0.1)


@pytest.mark.parametrize(
    ("model", "hardware", "options"),
    [
        ("llama-3.1-8b", "h100", {"engine": "vllm", "pipeline_parallel_size": 2}),
        ("llama-3.1-70b", "h100", {"engine": "vllm", "pipeline_parallel_size": 4}),
        ("llama-3.1-70b", "h200", {"engine": "trtllm", "pipeline_parallel_size": 2, "tensor_parallel_size": 2}),
    ],
)
@pytest.mark.parametrize(("users", "prompt", "answer"), [(4, 1000, 200), (32, 1000, 200), (128, 500, 300)])
def test_a_pipeline_in_a_closed_loop_is_the_steady_state_of_analyze(
    model: str, hardware: str, options: dict[str, object], users: int, prompt: int, answer: int
) -> None:
    batching = {**options, "batching": "continuous"}
    steady = lv.analyze(model, hardware, batch_size=users, input_len=prompt, output_len=answer, **batching)  # type: ignore[arg-type]
    lengths = f"uniform,low={answer // 2},high={answer + answer // 2}"
    made = lv.simulate(model, hardware, concurrency=users, input_len=prompt, output_len=lengths, **batching).to_dict()  # type: ignore[arg-type]
    assert made["e2e_s"]["mean"] == pytest.approx(steady.e2e_s, rel=0.05)
    assert made["tpot_s"]["mean"] == pytest.approx(steady.tpot_s, rel=0.05)
    assert made["ttft_s"]["mean"] == pytest.approx(steady.ttft_s, rel=0.13)


def test_a_single_user_of_a_pipeline_waits_for_nobody() -> None:
    options = {"engine": "vllm", "pipeline_parallel_size": 4}
    alone = lv.analyze("llama-3.1-70b", "h100", **options)  # type: ignore[arg-type]
    steady = lv.analyze("llama-3.1-70b", "h100", batching="continuous", **options)  # type: ignore[arg-type]
    assert (steady.ttft_s, steady.tpot_s) == pytest.approx((alone.ttft_s, alone.tpot_s), rel=0.01)


def test_more_stages_answer_more_where_one_holds_little() -> None:
    """Stages divide weights and cache; no figure of a pipeline is missing."""
    rates = []
    for stages in (2, 4):
        made = lv.simulate(
            "llama-3.1-70b", "h100", engine="vllm", pipeline_parallel_size=stages, concurrency=64
        ).to_dict()
        assert made["ttft_s"]["p99"] > made["ttft_s"]["p50"] > 0.0
        rates.append(made["output_tokens_per_s"])
    assert rates[1] > 1.5 * rates[0]
