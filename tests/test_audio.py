"""Sound of a request to Whisper: windows of 30 s, 1,500 positions of the encoder each."""

from __future__ import annotations

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError

MODEL, CHIP = "whisper-large-v3", "h100-sxm"


def test_sound_is_a_window_of_positions_in_place_of_the_input() -> None:
    """30 s are 3,000 frames of 10 ms, two of them a position."""
    spoken = lv.analyze(MODEL, CHIP, audio="12s", output_len=50)
    stated = lv.analyze(MODEL, CHIP, input_len=1500, output_len=50)
    assert (spoken.ttft_s, spoken.tpot_s) == (stated.ttft_s, stated.tpot_s)
    assert "12 s of sound, padded to a window of 30 s: 1,500 positions of the encoder are the input" in spoken.warnings


def test_several_windows_are_a_batch() -> None:
    both = lv.analyze(MODEL, CHIP, audio="30s", batch_size=[1, 3], output_len=50)
    assert both.ttft_s[1] > both.ttft_s[0]
    with pytest.raises(UserError, match=r"reads windows of 30 s; give --audio 30s --batch-size 3"):
        lv.analyze(MODEL, CHIP, audio="75s")


@pytest.mark.parametrize(("model", "audio", "message"), [
    ("llama-3.1-8b", "30s", "no encoder of sound"),
    ("t5-v1.1-base", "30s", "no encoder of sound"),
    (MODEL, "0s", "a time above 0"),
])  # fmt: skip
def test_what_hears_nothing_is_refused(model: str, audio: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze(model, CHIP, audio=audio)
