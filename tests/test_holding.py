"""Prompts that engines hold back: waits worked out by hand, and by drawing windows."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer.calibrate.e2e_rows import case_of
from llmviewer.calibrate.e2e_runs import CaseGroup, evaluate_groups
from llmviewer.serving.holding import Hold, Until


def waits(hold: Hold, *arriving: float, ranks: int = 1) -> tuple[list[float], list[float]]:
    """Steps that prompts wait, and prompts that go with one, for each rate of arrivals."""
    steps, beside = hold.of(np.array(arriving), ranks)
    return np.asarray(steps).tolist(), np.asarray(beside).tolist()


def test_a_scheduler_that_looks_every_thirty_steps_holds_prompts_for_half_of_them() -> None:
    assert waits(Hold(steps=30, until=Until.POLL), 0.1) == ([pytest.approx(14.5)], [pytest.approx(3.0)])


def test_the_first_prompt_waits_for_all_steps_and_those_after_it_for_half() -> None:
    steps, beside = waits(Hold(steps=20, until=Until.FIRST), 0.0, 0.1)
    assert steps == pytest.approx([20.0, (20.0 + 2 * 10.0) / 3])
    assert beside == pytest.approx([0.0, 2.0])


def test_ranks_go_when_all_have_a_prompt_or_time_is_over() -> None:
    hold = Hold(steps=60, until=Until.RANKS)
    assert waits(hold, 1e-9, 50.0, ranks=8)[0] == pytest.approx([29.5, 0.0], abs=1e-6)
    rng = np.random.default_rng(0)
    windows = np.minimum(np.ceil(rng.exponential(1 / 0.05, (200_000, 8)).max(axis=1)), 60)
    met = np.mean(windows**2) / np.mean(windows)
    steps, beside = waits(hold, 0.05, ranks=8)
    assert steps == pytest.approx([0.5 * (met - 1)], rel=0.01)
    assert beside == pytest.approx([0.05 * met], rel=0.01)


def row(**cells: object) -> dict[str, object]:
    return {
        "device": "h200_sxm", "n_gpus": 2, "tp": 2, "model": "meta-llama/Llama-3.1-70B-Instruct", "weight_dtype": "fp8",
        "engine": "trtllm", "batch": 16.0, "input_len": 1024, "output_len": 1024, "metric": "ttft_ms", "value": 100.0,
        "note": "InferenceMAX/InferenceX; serving with continuous batching",
    } | cells  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "steps"),
    [
        ({}, 20),
        ({"output_len": 8192}, None),
        ({"n_gpus": 8, "tp": 8}, None),
        ({"engine": "vllm 0.15"}, None),
        ({"note": "serving with continuous batching"}, None),
        (
            {"engine": "sglang 0.5.9", "model": "deepseek-ai/DeepSeek-R1", "device": "b200_sxm", "tp": 8, "n_gpus": 8},
            30,
        ),
        (
            {"engine": "sglang 0.5.9", "model": "deepseek-ai/DeepSeek-R1", "device": "b200_sxm", "tp": 8, "n_gpus": 8}
            | {"batch": 8.0},
            10,
        ),
        ({"engine": "sglang 0.5.9", "model": "deepseek-ai/DeepSeek-R1", "tp": 8, "n_gpus": 8}, None),
    ],
)
def test_rows_of_inferencex_are_held_as_its_scripts_say(cells: dict[str, object], steps: int | None) -> None:
    hold = case_of(row(**cells)).hold
    assert (hold and hold.steps) == steps


def test_held_prompts_wait_beside_the_cycle_of_their_replica() -> None:
    """Sixteen users of 922 tokens: fifteen others send 15 / 921 prompts a step, of which 0.33 come in 20 steps."""
    (held,) = evaluate_groups({0: case_of(row())})
    assert isinstance(held, CaseGroup)
    times = held.analysis.times
    beside = 20 * 15 / 921
    assert times.held[0] == pytest.approx(20 * (1 + beside / 2) / (1 + beside), rel=1e-3)
    cycle_s = times.cycle_s + times.request_s
    assert times.ttft_s + times.generation_s == pytest.approx(cycle_s + times.held[0] * times.step_s, rel=0.02)
