"""Times, batches and memory of MLX LM against published figures on chips of Apple."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.hardware import specs
from llmviewer.timing import engine


def served(model: str, quantization: str, chip: str = "m4-max", **sizes: Any) -> dict[str, Any]:
    found = lv.analyze(model, chip, engine="mlx-lm", quantization=quantization, **sizes).to_dict()["metrics"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("model", "quantization", "prompt", "generation"),
    [
        ("qwen3-4b", "none", 1780.63, 52.47),
        ("qwen3-4b", "mlx-8bit", 1606.573, 86.907),
        ("qwen3-4b", "mlx-4bit", 1622.27, 134.52),
        ("qwen3-30b-a3b", "mlx-8bit", 1719.47, 83.16),
    ],
)
def test_its_own_benchmarks(model: str, quantization: str, prompt: float, generation: float) -> None:
    """Tokens/s of a prompt of 2048 and of 128 more on an M4 Max; no constant is fitted to them.

    https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/BENCHMARKS.md
    """
    found = served(model, quantization, input_len=2048, output_len=128)
    assert 2048 / found["ttft_s"] == pytest.approx(prompt, rel=0.25)
    assert 1 / found["tpot_s"] == pytest.approx(generation, rel=0.15)
    low, high = found["intervals"]["tpot_s"]["80"]
    assert low < 1 / generation < high < 3 * low


def test_replies_at_once_gain_less_than_their_number() -> None:
    """4 and 10 replies of one model are 2.8 to 3.1 and 3.3 to 4.3 times as fast as one; ours within a third.

    https://github.com/unslothai/unsloth/pull/10310
    """
    one, four, ten = (
        size / served("qwen3-4b", "mlx-8bit", "m3-max", batch_size=size, input_len=128, output_len=64)["tpot_s"]
        for size in (1, 4, 10)
    )
    assert four / one == pytest.approx(2.95, rel=1 / 3)
    assert ten / one == pytest.approx(3.8, rel=1 / 2)


def test_chips_take_the_constants_of_the_nearest_that_was_measured() -> None:
    preset, nearest = (
        engine.load("mlx-lm"),
        {"m1-pro": "m1-max", "m2-ultra": "m1-ultra", "m5": "m5-max", "m2": "m2-max"},
    )
    for chip, known in nearest.items():
        assert preset.on(specs.load(chip)).constants == preset.of_generation(known).constants
    assert preset.on(specs.load("m4-pro")).constants == preset.constants
