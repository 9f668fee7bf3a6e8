"""Runs of an engine's fit: where its intervals hold, and how much wider they are elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.timing import engine
from llmviewer.timing.engine_scope import (
    FEWER_USERS,
    LONGER_PROMPTS,
    MORE_USERS,
    OTHER_CHIP,
    OTHER_LOAD,
    PER_HOST_SHARE,
    SHORTER_PROMPTS,
    Scope,
    widened,
)

RUNS = Scope(chips=("h200",), batching=("continuous",), batch=(4.0, 256.0), input_len=(1024.0, 8192.0), host_share=0.2)
INSIDE = {
    "chip": "h200",
    "batching": "continuous",
    "batch": 16.0,
    "input_len": 2000.0,
    "host_share": np.array([0.1]),
}


def beyond(**changed: object) -> dict[str, float]:
    """Errors above 0 by what they are of."""
    found = RUNS.beyond(**INSIDE | changed)  # type: ignore[arg-type]
    return {name: float(np.max(error)) for name, error in found.items() if np.any(error > 0.0)}


def test_inside_the_runs_nothing_is_beyond() -> None:
    assert beyond() == {}
    assert beyond(batching="static") == {}  # the simplest load of all


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"chip": "l40s"}, {"chip": OTHER_CHIP}),
        ({"batching": "chunked"}, {"load": OTHER_LOAD}),
        ({"batch": 1.0}, {"number of users": 2 * FEWER_USERS}),
        ({"batch": 1024.0}, {"number of users": 2 * MORE_USERS}),
        ({"input_len": 128.0}, {"prompt length": 3 * SHORTER_PROMPTS}),
        ({"input_len": 1.0}, {"prompt length": 3 * SHORTER_PROMPTS}),  # at most three octaves
        ({"input_len": 16384.0}, {"prompt length": LONGER_PROMPTS}),
        ({"host_share": np.array([0.5])}, {"share of host time": 0.3 * PER_HOST_SHARE}),
        ({"host_share": np.array([1.0])}, {"share of host time": 0.5}),  # at most
    ],
)
def test_every_side_beyond_the_runs_has_its_error(changed: dict[str, object], expected: dict[str, float]) -> None:
    assert beyond(**changed) == pytest.approx(expected)


def test_errors_of_points_are_their_own() -> None:
    found = RUNS.beyond(**INSIDE | {"batch": np.array([4.0, 512.0])})  # type: ignore[arg-type]
    assert found["number of users"] == pytest.approx([0.0, MORE_USERS])


def test_an_independent_error_adds_in_squares_on_either_side() -> None:
    """ln 0.7 and ln 1.2 with 0.3: hypot(0.3567, 0.3) = 0.4661, hypot(0.1823, 0.3) = 0.3511; outer bounds 1.53 x 0.3."""
    ratios = np.array([[0.5], [0.7], [1.2], [1.5]])
    found = widened(ratios, np.array([0.3]))[:, 0]
    assert found[1:3] == pytest.approx([np.exp(-0.4661), np.exp(0.3511)], rel=1e-3)
    assert found[[0, 3]] == pytest.approx(
        [np.exp(-np.hypot(np.log(0.5), 0.459)), np.exp(np.hypot(np.log(1.5), 0.459))], rel=1e-3
    )
    assert (widened(ratios, np.zeros(1)) == ratios).all()


def test_residuals_on_one_side_of_the_prediction_never_get_narrower() -> None:
    ratios = np.array([[0.5], [0.6], [0.8], [0.9]])
    found = widened(ratios, np.array([0.1]))
    assert (found[:2] <= ratios[:2]).all() and (found[2:] >= ratios[2:]).all()
    assert found[2, 0] == pytest.approx(np.exp(0.1))


@pytest.mark.parametrize("name", [one for one in engine.names() if one != "kernels"])
def test_presets_say_which_runs_their_residuals_are_of(name: str) -> None:
    preset = engine.load(name)
    own = [preset, *(preset.of_generation(one) for one in preset.generations)]
    own += [engine.load(f"{name}=={first}").of_version() for first in preset.versions]
    for fitted in own:
        for metric, origins in fitted.residuals.items():
            for origin in origins:
                scope = fitted.scope[metric][origin]
                assert scope.chips and scope.batching, (name, metric, origin)
                assert 0.0 <= scope.host_share <= 1.0


def test_a_run_like_the_fitted_ones_has_their_residuals() -> None:
    options = {"engine": "vllm", "batching": "continuous", "batch_size": 32, "input_len": 1024, "output_len": 1024}
    preset = engine.load("vllm")
    assert preset.scope["tpot_ms"]["fitted"].chips == ("b200", "h100-sxm", "h200")
    _, low, high, _ = preset.residuals["tpot_ms"]["fitted"]
    inside = lv.analyze("llama-3.1-8b", "h100-sxm", **options)
    interval = [bound / float(inside.tpot_s) for bound in inside.metrics()["intervals"]["tpot_s"]["80"]]
    assert interval == pytest.approx([low, high], rel=1e-6)
    assert not [text for text in inside.to_dict()["provenance"]["assumed"] if "beyond the runs" in text]


def test_elsewhere_the_answer_names_what_is_beyond() -> None:
    """vLLM before 0.8 was fitted to static batches of an H100 and an A100."""
    served = {"engine": "vllm-v0", "batching": "continuous", "batch_size": 8}
    texts = lv.analyze("llama-3.1-8b", "h200", **served).to_dict()["provenance"]["assumed"]
    assert any(text.startswith("TPOT: beyond the runs of vllm-v0's fit in chip and load; ") for text in texts)


@pytest.mark.parametrize("hardware", ["a100-80gb-sxm", "rtx-4090", "mi300x", "tpu-v6e"])
def test_chips_without_runs_have_wider_intervals_than_their_kernels(hardware: str) -> None:
    kernels, served = (lv.analyze("llama-3.1-8b", hardware, engine=name) for name in ("kernels", "vllm"))

    def width(result: lv.Result) -> float:
        low, high = result.metrics()["intervals"]["tpot_s"]["80"]
        return float(np.log(high / low))

    assert width(served) > width(kernels)
