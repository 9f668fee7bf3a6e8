"""Encoders under load: whole inputs of several requests in a pass, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.simulation.traffic import LEAST_SEARCHED, MOST_SEARCHED

ENCODER, CHIP = "bge-m3", "l4"


def test_a_request_alone_takes_its_pass_and_the_time_of_the_host() -> None:
    alone = lv.analyze(ENCODER, CHIP, engine="vllm", input_len=256, output_len=1)
    made = lv.simulate(ENCODER, CHIP, request_rate=0.5, requests=200, input_len=256, output_len=1)
    assert made.to_dict()["ttft_s"]["p50"] == pytest.approx(alone.ttft_s, rel=0.02)


def test_a_pass_takes_as_many_whole_inputs_as_its_budget_holds() -> None:
    """64 inputs of 256 tokens at once, 8,192 tokens in a step: two passes of 32, the second ends after both."""
    budget = {"max_num_batched_tokens": 8192}
    full = lv.analyze(ENCODER, CHIP, engine="vllm", batch_size=32, input_len=256, output_len=1, **budget)
    pass_s = full.ttft_s - float(full.analysis.request_s[0])
    made = lv.simulate(ENCODER, CHIP, burst=True, requests=64, input_len=256, output_len=1, **budget)
    first, last = (made.records.finish_s - made.records.start_s).min(), made.records.finish_s.max()
    assert first == pytest.approx(pass_s, rel=0.02)
    assert last - made.records.start_s.min() == pytest.approx(2.0 * pass_s, rel=0.02)


def test_an_input_beyond_the_budget_is_refused_as_it_cannot_be_cut() -> None:
    lengths = {"input_len": "uniform,low=100,high=600", "output_len": 1}
    made = lv.simulate(ENCODER, CHIP, max_num_batched_tokens=512, request_rate=1, requests=100, **lengths)
    assert ((made.records.refused == 3) == (made.records.input_len > 512)).all()
    assert (made.records.refused == 3).any()
    with pytest.raises(UserError, match="at most max_num_batched_tokens"):
        lv.analyze(ENCODER, CHIP, engine="vllm", max_num_batched_tokens=512, input_len=600, output_len=1)


def test_answers_of_an_encoder_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", ENCODER, "--hardware", CHIP, "--request-rate", "2"]) == 2
    assert capsys.readouterr().err.strip() == (
        "error: bge-m3 runs one bidirectional pass, no decode, no KV cache; not possible: output length above 1; "
        "allowed: --output-len 1"
    )
    load = ["simulate", ENCODER, "--hardware", CHIP, "--request-rate", "2", "--output-len", "1"]
    for more in (["--batching", "chunked"], ["--prefix-cache", "0.5"], ["--pools", "prefill=1,decode=1"]):
        assert main([*load, *more]) == 2
        assert "bge-m3 runs one bidirectional pass" in capsys.readouterr().err
    words = ["size", ENCODER, "--hardware", CHIP, "--request-rate", "2", "--output-len", "1", "--ttft", "1s"]
    assert main(words) == 2
    assert "size serves decoders" in capsys.readouterr().err


def test_an_option_that_nobody_typed_is_named_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Not by the longest of its names, --random-output-len."""
    assert main(["analyze", ENCODER, "--hardware", CHIP]) == 2
    assert "allowed: --output-len 1" in capsys.readouterr().err
    assert main(["analyze", ENCODER, "--hardware", CHIP, "--random-output-len", "5"]) == 2
    assert "allowed: --random-output-len 1" in capsys.readouterr().err


def test_runs_of_a_search_have_a_limit_where_no_option_says_how_long_they_are() -> None:
    """Ten minutes at 1,000 requests/s would be 600,000 requests."""
    made = lv.simulate(ENCODER, CHIP, request_rate=1000, requests=10, input_len=256, output_len=1)
    usual = replace(made.traffic, count=None)
    assert len(usual.searched(1000.0).requests()) == MOST_SEARCHED
    assert len(usual.searched(10.0).requests()) == pytest.approx(6000, rel=0.05)
    assert replace(usual, count=100).searched(1000.0).count == 100
    assert replace(usual, duration_s=100.0).searched(1000.0).count is None
    assert replace(usual, duration_s=1.0).searched(10.0).count == LEAST_SEARCHED
