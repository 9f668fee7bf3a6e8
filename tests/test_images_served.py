"""Images in the prompts of a server: tokens beside the text, and passes of the vision tower before the first token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError

MODEL, CHIP = "qwen2.5-vl-7b", "h100-sxm"
IMAGES = {"images": "2x1024x1024"}
TOKENS = 2 * 1369  # 1024 / 28 rounded is 37 rows and columns of merged patches


def ttft_s(**words: Any) -> float:
    """The first token of a lone request."""
    found = lv.simulate(MODEL, CHIP, request_rate=0.1, requests=20, engine="kernels", **words).latencies()
    return float(found["ttft_s"]["p50"])  # type: ignore[arg-type]


def test_a_lone_prompt_with_images_is_that_of_analyze() -> None:
    steady = lv.analyze(MODEL, CHIP, **IMAGES)
    assert ttft_s(**IMAGES) == pytest.approx(float(steady.ttft_s), rel=0.03)
    text = ttft_s(input_len=1024 + TOKENS)
    assert ttft_s(**IMAGES) - text == pytest.approx(float(np.max(steady.analysis.images_s)), rel=0.01)


@pytest.mark.parametrize("layout", [{}, {"data_parallel_size": 2}, {"batching": "disaggregated,prefill=1,decode=1"}])
def test_tokens_of_images_join_those_of_the_prompt(layout: dict[str, str]) -> None:
    made = lv.simulate(MODEL, CHIP, burst=True, requests=30, input_len="uniform,low=10,high=90", **IMAGES, **layout)
    assert np.all((made.records.input_len >= 10 + TOKENS) & (made.records.input_len <= 90 + TOKENS))
    assert any("1,369 tokens each beside --input-len" in note for note in made.notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"pipeline_parallel_size": 2}, "not possible with devices other than one tensor group"),
        ({"prefix_cache": "0.5"}, "not possible with prefix hits"),
        ({"sessions": "turns=2,first=9,output=3"}, "prompts of sessions and of hash_ids repeat text; remove images"),
    ],
)
def test_what_a_tower_is_not_timed_with_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.simulate(MODEL, CHIP, request_rate=1, requests=20, **IMAGES, **words)


def test_more_chips_are_needed_to_read_images() -> None:
    words = {"request_rate": 30, "requests": 300, "ttft": "p90:2s", "quantization": "none"}
    counts = [lv.size(MODEL, CHIP, **words, **more).to_dict() for more in ({}, IMAGES)]
    text, images = (one["best"]["devices"] for one in counts)
    assert images > text
    assert any("vision tower" in note for note in counts[1]["notes"])
    assert "--images 2x1024x1024" in counts[1]["best"]["command"]
