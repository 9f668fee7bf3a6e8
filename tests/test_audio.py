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
    with pytest.raises(UserError, match=r"reads windows of 30 s; give audio 30s batch_size 3"):
        lv.analyze(MODEL, CHIP, audio="75s")


@pytest.mark.parametrize(("model", "audio", "message"), [
    ("llama-3.1-8b", "30s", "no encoder of sound"),
    ("t5-v1.1-base", "30s", "no encoder of sound"),
    (MODEL, "0s", "a time above 0"),
])  # fmt: skip
def test_what_hears_nothing_is_refused(model: str, audio: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.analyze(model, CHIP, audio=audio)


@pytest.mark.parametrize("model", [MODEL, "t5-v1.1-base"])
def test_a_lone_request_to_a_server_is_that_of_analyze(model: str) -> None:
    sizes = {"input_len": 1500, "output_len": 40}
    alone, made = lv.analyze(model, CHIP, **sizes), lv.simulate(model, CHIP, concurrency=1, requests=20, **sizes)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert made.latencies()[name]["mean"] == pytest.approx(float(getattr(alone, name)), rel=0.01)
    assert "no preset of an engine times encoder-decoders" in " ".join(made.notes)


def test_inputs_that_come_together_are_read_together() -> None:
    """Five windows of 1,500 positions are a pass of 8,192 tokens: of ten requests at once five wait for the others."""
    made = lv.simulate(MODEL, CHIP, burst=True, requests=10, audio="30s", output_len=1)
    five = float(lv.analyze(MODEL, CHIP, audio="30s", batch_size=5, output_len=1).ttft_s)
    assert sorted(made.records.ttft_s) == pytest.approx([five] * 5 + [2.0 * five] * 5, rel=0.01)


@pytest.mark.parametrize(("words", "message"), [
    ({"input_len": "uniform,low=9,high=99"}, "inputs of one length"),
    ({"audio": "30s", "input_len": 9}, "but audio has its own"),
    ({"audio": "30s", "pools": "prefill=1,decode=1"}, "allowed: one pool, by simulate"),
    ({"audio": "30s", "pipeline_parallel_size": 2}, "pipeline or context parallelism"),
    ({"audio": "30s", "speculative": "ngram,tokens=4,acceptance=0.5"}, "remove speculative"),
])  # fmt: skip
def test_servers_that_cannot_read_sound_are_refused(words: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lv.simulate(MODEL, CHIP, concurrency=1, requests=20, **words)


def test_servers_of_sound_are_not_sized() -> None:
    with pytest.raises(UserError, match="simulated, not sized"):
        lv.size(MODEL, CHIP, request_rate=1, audio="30s", ttft="1s")
