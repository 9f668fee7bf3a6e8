"""Every feature once, on a small model and one chip: `make smoke`, the inner loop while code changes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from llmviewer.cli import COMMANDS, main
from llmviewer.reports.plots import KINDS
from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.registry import TECHNIQUES, load
from llmviewer.timing import engine
from tests.answers import chip_for

MODEL = "llama-3.2-1b --hardware a100-80gb-sxm"
SIZES = "--batch-size 2 --input-len 64 --output-len 4"
#: command -> arguments; commands that need other data are tested elsewhere.
LINES = {
    "analyze": f"analyze {MODEL} {SIZES}",
    "sweep": f"sweep {MODEL} --batch-size 1,2 --input-len 64 --output-len 4",
    "why": f"why '{MODEL} {SIZES}' '{MODEL} {SIZES} --quantization w4a16'",
    "advise": f"advise {MODEL} {SIZES}",
    "simulate": f"simulate {MODEL} --request-rate 2 --requests 50 --input-len 64 --output-len 8",
    "size": f"size {MODEL} --request-rate 2 --requests 50 --input-len 64 --output-len 8 --ttft 1s",
    "compare": f"compare {MODEL},h100 {SIZES}",
    "crossover": f"crossover {MODEL} --quantization none,w4a16 --batch-size 1,8 --context 64,512",
    "require": f"require {MODEL.split(maxsplit=1)[0]} --vary bandwidth --tpot 10ms",
    "fit": "fit --hardware a100-80gb-sxm --models llama-3.2-1b --context 1k",
    "explain": f"explain tpot_s {MODEL} {SIZES}",
    "elasticity": f"elasticity {MODEL} {SIZES}",
    "train": f"train {MODEL} --lora rank=8 --input-len 64",
    "check": f"check {Path(__file__).parent.parent}/docs/contract.yaml",
    "diagnose": f"diagnose {Path(__file__).parent.parent}/docs/profile.json.gz llama-3.1-8b --hardware h100",
    "report": f"report {MODEL} {SIZES} -o report.html",
    "page": f"page {MODEL} {SIZES} -o page.html",
    "trace": f"trace {MODEL} {SIZES} -o trace.json",
    "models": "models show llama-3.2-1b",
    "hardware": "hardware show a100-80gb-sxm",
    "techniques": "techniques show attention",
}
ELSEWHERE = {
    "plot": "below, one kind at a time",
    "survey": "test_survey.py: many analyses",
    "calibrate": "test_calibrate_run.py: measures",
    "serve": "test_server_safety.py: runs until it is stopped",
    "mcp": "test_mcp.py: talks to a client",
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def runs(line: str) -> bool:
    return main(shlex.split(line)) in (0, 1)


def test_every_command_is_run_here_or_in_another_file() -> None:
    assert set(LINES) | set(ELSEWHERE) == set(COMMANDS)


@pytest.mark.parametrize("command", LINES)
def test_every_command_runs(command: str) -> None:
    assert runs(LINES[command])


@pytest.mark.parametrize("kind", ["roofline", "latency", "memory"])
def test_every_plot_is_drawn(kind: str) -> None:
    assert kind in KINDS
    assert runs(f"plot {kind} {MODEL} -o picture.png")
    assert Path("picture.png").stat().st_size > 5000


@pytest.mark.parametrize("preset", engine.names())
def test_every_engine_preset_runs(preset: str) -> None:
    hardware = f"--hardware {chip_for(preset)}"  # the last one counts
    assert runs(f"analyze {MODEL} {SIZES} {hardware} --engine {preset}")


@pytest.mark.parametrize("name", [*TECHNIQUES, *(m for methods in METHODS.values() for m in methods)])
def test_every_technique_runs(name: str) -> None:
    words = shlex.split(load(name).example)[1:]
    assert words[0] == "analyze"
    assert main([*words, "--efficiency", "ideal", "--format", "json", "-o", "answer.json"]) in (0, 1)
