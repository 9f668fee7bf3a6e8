"""Prompts that fill the cache or exceed a step: they are admitted whole, and more users do not answer less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.simulation import options as load
from llmviewer.simulation.call import prepared, run_all
from llmviewer.simulation.run import simulate_requests
from tests.simulated import Cache, fleet, requests

USERS = (1, 2, 3, 4, 6, 8, 16, 32)
#: Model, chip, prompt, answer and options: caches that hold two to twelve such requests.
FULL: tuple[tuple[str, str, int, int, Mapping[str, Any]], ...] = (
    ("llama-3.1-8b", "rtx-5090", 28620, 256, {}),
    ("llama-3.1-8b", "rtx-4090", 9000, 700, {}),
    ("qwen3-30b-a3b", "a100-40gb-sxm", 12000, 1500, {"quantization": "fp8"}),
    ("deepseek-v2-lite", "l40s", 30000, 400, {"max_num_batched_tokens": 8192}),
    ("gemma-3-12b", "a100-40gb-sxm", 20000, 1000, {}),
    ("llama-3.1-8b", "rtx-4090", 2000, 4000, {"engine": "sglang"}),
    ("llama-3.1-8b", "rtx-4090", 6000, 2000, {"engine": "trtllm"}),
    ("llama-3.1-8b", "rtx-4090", 6000, 2000, {"engine": "vllm==0.7.3"}),
)


@pytest.mark.parametrize(("model", "hardware", "prompt", "answer", "options"), FULL)
def test_more_users_answer_no_less_but_for_prompts_computed_again(
    model: str, hardware: str, prompt: int, answer: int, options: Mapping[str, Any]
) -> None:
    words = {"input_len": str(prompt), "output_len": str(answer), "requests": 60}
    made = prepared(model, hardware, concurrency=1, **words, **options).made
    best = 0.0
    for users in USERS:
        traffic = load.traffic_of(load.checked({**words, "concurrency": users}))
        outcome = run_all(made.fleet, traffic, 1)[0]
        line, passed_s = outcome.timelines[0], float(outcome.records.finish_s.max())
        rate = 60 * answer / passed_s
        again = 1.0 - 60 * prompt / float(line.prompt_tokens.sum())
        prompts_s = float((line.end_s - line.start_s)[line.prompt_tokens > 0].sum())
        assert rate > 0.98 * best * (1.0 - again * prompts_s / passed_s)
        assert again == 0.0 or outcome.records.preemptions.any()
        best = max(best, rate)


def test_the_published_run_of_fifty_long_prompts_is_within_its_interval() -> None:
    # AccelMark, suite D on an RTX 5090: 54.3 output tokens/s (https://github.com/FreedomIntelligence/AccelMark)
    words = {"input_len": 28620, "output_len": 256, "concurrency": 50, "requests": 50, "burst": True}
    document = lv.simulate("llama-3.1-8b", "rtx-5090", max_model_len=32768, **words).to_dict()
    low, high = document["intervals"]["calibration"]["output_tokens_per_s"]["80"]
    assert low < 54.3 < high
    assert document["preemptions"] == 0


def test_a_prompt_waits_until_all_of_it_fits() -> None:
    # 100 blocks; the first request decodes in 81 to 82 of them, so the second, of 20 blocks in two steps, waits for it
    room = Cache(blocks=100, token_budget=200)
    records = simulate_requests(requests([0.0, 1e-3], [1290, 320], [20, 1]), fleet(room=room)).records
    assert records.preemptions.tolist() == [0, 0]
    assert records.start_s[1] == records.finish_s[0]


def test_a_prompt_longer_than_a_step_takes_as_long_as_analyze_says() -> None:
    # vLLM V0 does not split prompts: its step has room for the longest context where nothing else is stated
    options = {"engine": "vllm==0.7.3", "batching": "continuous"}
    for prompt in (9000, 30000, 100000):
        alone = lv.simulate(
            "llama-3.1-8b", "h200", concurrency=1, requests=1, input_len=prompt, output_len=2, **options
        )
        steady = lv.analyze(
            "llama-3.1-8b", "h200", input_len=prompt, output_len=2, max_num_batched_tokens=131072, **options
        )
        # analyze has part of a decode step that others run, here a slow one: beyond 8,192 tokens V0 has no graph
        assert alone.records.ttft_s[0] == pytest.approx(steady.ttft_s, rel=0.05)


@pytest.mark.parametrize("options", [{"engine": "trtllm"}, {"engine": "vllm==0.7.3", "max_num_batched_tokens": 8192}])
def test_an_engine_that_splits_no_prompts_refuses_those_longer_than_its_steps(options: Mapping[str, Any]) -> None:
    lengths = {"input_len": "uniform,low=8000,high=8400", "output_len": 1, "requests": 60, "request_rate": 1}
    made = lv.simulate("llama-3.1-8b", "h100-sxm", **lengths, **options)
    refused = made.records.input_len > 8192
    assert 0 < refused.sum() < 60
    np.testing.assert_array_equal(made.records.refused, np.where(refused, 3, 0))
    assert (
        made.to_dict()["refused"]["with prompts longer than a step, which the engine does not split"] == refused.sum()
    )


#: Loads at the edge of an engine's limits -> requests that are answered, of 20.
EDGES: tuple[tuple[Mapping[str, Any], int], ...] = (
    ({"request_rate": 4, "max_num_seqs": 1}, 20),
    ({"concurrency": 4, "max_num_seqs": 1}, 20),
    ({"concurrency": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16}, 20),
    ({"request_rate": 4, "max_num_batched_tokens": 16}, 20),
    ({"request_rate": 4, "max_num_batched_tokens": 1}, 20),
    ({"request_rate": 4, "max_num_batched_tokens": 17}, 20),
    ({"request_rate": 4, "max_model_len": 512}, 0),
    ({"concurrency": 4, "max_model_len": 512}, 0),
    ({"concurrency": 4, "max_model_len": 1152}, 20),
    ({"concurrency": 4, "input_len": 60000}, 20),
    ({"concurrency": 4, "input_len": 1, "output_len": 1, "max_model_len": 2}, 20),
    ({"concurrency": 4, "engine": "trtllm", "input_len": 10000}, 0),
    ({"concurrency": 4, "engine": "vllm==0.7.3", "input_len": 10000}, 20),
)


@pytest.mark.parametrize(("words", "answered"), EDGES)
def test_loads_at_the_edge_of_limits_are_answered_or_refused(words: Mapping[str, Any], answered: int) -> None:
    document = lv.simulate("llama-3.1-8b", "h100-sxm", requests=20, **words).to_dict()
    assert (document["completed"], sum(document["refused"].values())) == (answered, 20 - answered)


@pytest.mark.parametrize("model", ["mamba-130m", "granite-4.0-h-1b", "qwen3-next-80b-a3b"])
def test_prompts_of_one_token_reach_recurrent_models(model: str) -> None:
    words = {"input_len": 1, "output_len": 2, "requests": 30}
    for load_words in ({"concurrency": 3}, {"burst": True}):
        assert lv.simulate(model, "b200", **words, **load_words).to_dict()["completed"] == 30


def test_a_server_with_one_place_answers_one_after_the_other() -> None:
    records = lv.simulate(
        "llama-3.1-8b", "h100-sxm", burst=True, requests=5, max_num_seqs=1, input_len=100, output_len=10
    ).records
    np.testing.assert_allclose(records.start_s[1:], records.finish_s[:-1])


def test_the_places_of_a_closed_loop_are_those_of_its_limit() -> None:
    made = prepared("llama-3.1-8b", "h100-sxm", concurrency=8, requests=40, max_num_seqs=3).made
    outcome = run_all(made.fleet, replace(made.traffic, burst=True), 1)[0]
    assert float(outcome.timelines[0].decoding.max()) == 3.0
