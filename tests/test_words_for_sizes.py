"""Sizes as people write them, 4k and 128k, and the names that other tools give our options."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.arguments import parse_size
from llmviewer.language.grammar import Number, RefusedError
from llmviewer.result.sweep import parse_values
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.technique import Whole
from tests.answers import refusal

ANALYZE = ["analyze", "llama-3.2-1b", "--hardware", "h100", "--efficiency", "ideal"]


def document(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*words, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4k", 4096),
        ("128k", 131_072),
        ("128K", 131_072),
        ("1m", 1_048_576),
        ("1.5k", 1536),
        ("512", 512),
        (" 2k ", 2048),
        ("4096+512", 4608),
        ("4k + 1k", 5120),
        ("1e+3", 1000),
    ],
)
def test_k_is_1024_and_m_is_its_square(text: str, number: int) -> None:
    """Context lengths are named so: a 128k model holds 128 x 1024 tokens."""
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["k", "4kk", "4q", "k4", "1_0k", "four k", "", "4096+", "+", "1+x"])
def test_other_words_stay_text_and_are_refused(text: str) -> None:
    assert parse_size(text) == text


def test_lists_and_ranges_of_a_sweep_take_suffixes() -> None:
    assert parse_values("input_len", "1k,2k").tolist() == [1024.0, 2048.0]
    assert parse_values("input_len", "1k:4k:*2").tolist() == [1024.0, 2048.0, 4096.0]
    assert parse_values("input_len", "1k:4k:+1k").tolist() == [1024.0, 2048.0, 3072.0, 4096.0]
    assert len(parse_values("input_len", "1:4k")) == 4096


def test_only_whole_numbers_take_suffixes() -> None:
    """`acceptance=0.5k` is no probability; `tokens=2k` is a token budget."""
    assert Whole("tokens of a step").read("tokens", "2k") == 2048.0
    with pytest.raises(RefusedError, match=r"acceptance is '0.5k'; allowed: a number"):
        Number("acceptance of a token", high=1.0).read("acceptance", "0.5k")


def test_fractions_and_bandwidths_in_gb_per_s_take_no_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are decimal, so 1k GB/s would be 1,000 and not 1,024."""
    plot = ["plot", "bandwidth", "llama-3.2-1b", "--hardware", "h100", "--bandwidth", "1k"]
    assert "bandwidth: '1k' is not a number or a range; allowed: 8" in refusal(plot, capsys)
    assert "is '0.001k'; allowed: above 0" in refusal([*ANALYZE, "--gpu-memory-utilization", "0.001k"], capsys)


def test_every_alias_names_one_option() -> None:
    spelled = [spelling for name, one in OPTIONS.items() for spelling in one.spellings(name)]
    assert len(spelled) == len(set(spelled))
    assert {"--batch", "--tp", "--pp", "--dp", "--ep", "--cp", "-tp", "-pp", "-q", "--block-size"} <= set(spelled)


def test_aliases_give_the_answer_of_the_long_names(capsys: pytest.CaptureFixture[str]) -> None:
    aliases = "--batch 8 --random-input-len 1k --random-output-len 64 --tp 2 --pp 2 -q fp8 --block-size 16"
    names = (
        "--batch-size 8 --input-len 1024 --output-len 64 --tensor-parallel-size 2 --pipeline-parallel-size 2 "
        "--quantization fp8 --kv-block-size 16"
    )
    short, long = (document([*ANALYZE, *words.split()], capsys) for words in (aliases, names))
    assert short == long
    assert short["workload"] == {"batch_size": 8, "input_len": 1024, "output_len": 64}
    assert short["parallelism"]["devices"] == 4


def test_lists_of_other_commands_have_the_same_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "llama-3.2-1b", "--hardware", "h100", "--batch", "1,2", "--random-input-len", "1k,2k"]
    rows = document([*words, "--efficiency", "ideal"], capsys)["rows"]
    assert [(row["batch_size"], row["input_len"]) for row in rows] == [(1, 1024), (2, 1024), (1, 2048), (2, 2048)]


@pytest.mark.parametrize("option", ["--concurrency", "--max-concurrency"])
def test_concurrency_is_answered_with_the_batch_size(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal([*ANALYZE, option, "8"], capsys)
    assert line == f"error: no such option: {option}; use --batch-size"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("crossover gpt2 --hardware h100,a100 --input-len 1k", "no such option: --input-len; use --context"),
        (
            "crossover gpt2 --hardware h100 --max-model-len 1k",
            "max-model-len is 1024; it needs an engine, such as vllm",
        ),
        ("analyze gpt2 --hardware h100 --max-num-seqs 8", "--max-num-seqs is 8; it needs an engine, such as vllm"),
        ("models show gpt2 --concurrency 8", "no such option: --concurrency (llmviewer models show --help lists all)"),
    ],
)
def test_only_options_of_the_command_are_advised(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(words.split(), capsys).endswith(message)


@pytest.mark.parametrize(
    "call",
    [
        lv.analyze,
        lv.compare,
        lv.advise,
        lv.elasticity,
        lv.train,
        partial(lv.require, vary="batch_size"),
        partial(lv.simulate, request_rate=1, requests=20),
    ],
)
def test_every_call_reads_the_sizes_of_the_command_line(call: Any) -> None:
    words, numbers = (call("llama-3.2-1b", "h100", input_len=length).to_dict() for length in ("1k", 1024))
    assert {**words, "command": ""} == {**numbers, "command": ""}
