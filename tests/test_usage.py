"""Command lines as people mistype them: one line that says what to type, status 2, and no file."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from llmviewer.cli import main

from .answers import refusal

RUN = "analyze llama-2-7b --hardware h100"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "analyze llama-2-7b",
            "missing --hardware: Chip name (2x4090: two), or path to its YAML (llmviewer analyze --help",
        ),
        ("analyze llama-2-7b h100", "; did you mean --hardware h100? (llmviewer analyze --help lists all)"),
        ("analyze --hardware h100", "missing MODEL: Model name, Hub id, or path"),
        ("diagnose llama-3.1-8b --hardware h100", "(llmviewer diagnose MEASURED MODEL)"),
        ("require llama-2-70b --tokens-per-s 100", "missing --vary: Up to three of bandwidth, peak.bf16"),
        ("calibrate run --quick", "missing --output: Directory for samples.jsonl"),
        ("analyze --model llama-2-7b --hardware h100", "the model stands alone: llmviewer analyze MODEL ..."),
        ("analyze llama-2-7b --hw h100", "no such option: --hw; use --hardware"),
        (f"{RUN} -b 8", "-b is llama.cpp's logical batch; state its engine, or --batch-size for sequences"),
        (f"{RUN} --batch_size 8", "no such option: --batch_size; did you mean --batch-size?"),
        (f"{RUN} --batchsize 8", "did you mean --batch-size?"),
        (f"{RUN} --seq-len 8", "no such option: --seq-len; use --input-len"),
        (f"{RUN} --max-new-tokens 8", "use --output-len"),
        (f"{RUN} --tensor-parallel 2", "did you mean --tensor-parallel-size?"),
        (f"{RUN} --xyzzy", "no such option: --xyzzy (llmviewer analyze --help lists all)"),
        (f"{RUN} --input-len 4,096", "analyze takes one value, 4096 without commas; for lists use sweep"),
        (f"{RUN} -q int4", "unknown quantization 'int4'; did you mean 'w4a16'?"),
        (f"{RUN} -q 4bit", "did you mean 'w4a16'?"),
        (f"{RUN} --engine Ollamas", "unknown engine 'Ollamas'; did you mean 'ollama'?"),
        (f"{RUN} --engine tensorrt", "did you mean 'trtllm'?"),
        (f"{RUN} -o roofline.pdf", "unknown format 'pdf'; allowed: csv, json, markdown, table"),
        ("simulate llama-3.1-8b --hardware h100 --qps 8", "no such option: --qps; use --request-rate"),
        ("compare llama-2-7b --hardware h100, a100", "a list has commas without spaces"),
        ("advise llama-2-7b --hardware h100 --tpot 10 ms", "a value has no spaces"),
        ("why llama-3.1-8b --hardware h100", "llmviewer why 'MODEL --hardware A' 'MODEL --hardware B'"),
        ("explain latency llama-3.1-8b --hardware h100", "unknown number 'latency' (see `llmviewer explain list`)"),
        ("plot parity bench.json --hardware h100 -o parity.png", "no file 'bench.json'"),
        ("-v", "no such option: -v; use --version"),
        ("--verison", "did you mean --version?"),
    ],
)
def test_a_mistyped_command_line_says_what_to_type(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    told = refusal(shlex.split(line), capsys)
    assert told.startswith("error: ") and message in told
    assert [*tmp_path.iterdir()] == []


def test_engines_are_known_as_their_makers_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for engine in ("vllm==0.19", "vLLM==0.19"):
        assert main([*RUN.split(), "--engine", engine, "--format", "json"]) == 0
        answers.append(capsys.readouterr().out.replace("vLLM==", "vllm=="))
    assert answers[0] == answers[1]
