"""Diagnosis of results of benchmarks: prompts, queues, and results of another chip, model or load than stated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
from llmviewer.calibrate.diagnosis.requests import backlog_s
from llmviewer.calibrate.readers.run import Arrivals
from llmviewer.reports import diagnosis_page

BENCH: dict[str, Any] = {
    "gpu_info": "NVIDIA GeForce RTX 4090", "model_filename": "llama-3.1-8b-q4_k_m.gguf", "type_k": "f16",
    "n_gpu_layers": 99, "n_prompt": 0, "n_gen": 0, "n_depth": 0, "avg_ts": 0.0,
}  # fmt: skip
SERVED: dict[str, Any] = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "request_rate": "inf", "max_concurrency": 32,
    "completed": 200, "duration": 100.0, "total_input_tokens": 200 * 1024, "total_output_tokens": 200 * 128,
    "output_throughput": 256.0, "mean_ttft_ms": 900.0, "mean_tpot_ms": 30.0,
}  # fmt: skip


def _diagnosed(folder: Path, content: object, model: str, hardware: str, **options: Any) -> Diagnosis:
    path = folder / "result.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return lv.diagnose(path, model, hardware, **options)


def _parts(found: Diagnosis) -> dict[str, float]:
    return {part.name: part.amount_s for part in found.parts}


def test_prompts_of_llama_bench_are_a_part(tmp_path: Path) -> None:
    """512 tokens at 500 a second take 1.024 s, 128 further ones at 140 take 0.914 s."""
    prompt = {**BENCH, "n_prompt": 512, "avg_ts": 500.0}
    both = [prompt, {**BENCH, "n_gen": 128, "avg_ts": 140.0}]
    found = _diagnosed(tmp_path, both, "llama-3.1-8b", "rtx-4090")
    assert found.measured_s == pytest.approx(512 / 500 + 128 / 140)
    assert found.parts[0].name == "prompt"
    assert sum(_parts(found).values()) == pytest.approx(found.measured_s - found.predicted_s)
    assert "prompts are slower: prompt_tok_s 500 measured" in found.suspects[0].text
    alone = _diagnosed(tmp_path, [prompt], "llama-3.1-8b", "rtx-4090")
    assert alone.measured_s == pytest.approx(1.024)
    assert _parts(alone)["prompt"] == pytest.approx(_parts(found)["prompt"])


@pytest.mark.parametrize(
    ("record", "model", "hardware", "said"),
    [
        (
            {**BENCH, "n_gen": 128, "avg_ts": 140.0},
            "llama-3.1-8b",
            "h100",
            "of rtx-4090, and the prediction",
        ),
        (
            SERVED,
            "qwen3-8b",
            "h100",
            "of meta-llama/Llama-3.1-8B-Instruct (llama-3.1-8b)",
        ),
    ],
)
def test_a_result_of_another_chip_or_model_is_said(
    record: dict[str, Any], model: str, hardware: str, said: str, tmp_path: Path
) -> None:
    found = _diagnosed(tmp_path, record, model, hardware)
    assert said in found.warnings[0]
    assert found.suspects[0].text == found.warnings[0]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "acme/unknown-1b", "/models/Llama-3.1-8B-Instruct", "../x.json"])
def test_a_model_that_is_the_same_or_unknown_is_no_doubt(name: str, tmp_path: Path) -> None:
    assert not _diagnosed(tmp_path, {**SERVED, "model_id": name}, "llama-3.1-8b", "h100").warnings


def test_options_against_the_result_are_said(tmp_path: Path) -> None:
    found = _diagnosed(tmp_path, SERVED, "llama-3.1-8b", "h100", batch_size=8, input_len=1000)
    assert found.warnings == ("--batch-size is 8, and the result states 32; the option is compared",)


@pytest.mark.parametrize(
    ("arrivals", "first", "waits"),
    [
        (Arrivals(rate=4.0, completed=200.0, duration_s=100.0), 4.0, 23.0),
        (Arrivals(rate=4.0, completed=200.0, duration_s=52.0), 4.0, 0.0),
        (Arrivals(rate=4.0, completed=8.0, duration_s=5.0), 4.0, 0.0),
    ],
)
def test_a_backlog_is_a_fluid_queue(arrivals: Arrivals, first: float, waits: float) -> None:
    """200 requests arrive within 50 s and are done after 100: the last waits 46 s beside its first token, the mean 23.
    Eight requests that end 3 s after the last arrival did not wait: their first token takes longer."""
    assert backlog_s(arrivals, first) == pytest.approx(waits)


def test_a_growing_queue_is_split_from_the_first_token(tmp_path: Path) -> None:
    """Four requests arrive per second and two are completed: of 5 s to the first token, what is not predicted waits."""
    load = {"request_rate": 4.0, "max_concurrency": None, "mean_ttft_ms": 5000.0, "mean_tpot_ms": 12.0}
    found = _diagnosed(tmp_path, {**SERVED, **load}, "llama-3.1-8b", "h100")
    assert found.parts[0].name == "queue"
    assert sum(_parts(found).values()) == pytest.approx(found.measured_s - found.predicted_s)
    assert "4 requests arrive per second and 2 are completed" in found.parts[0].evidence
    assert "does not state how long requests waited" in found.parts[0].evidence
    assert "vllm:request_queue_time_seconds" in found.suspects[0].remedy


def test_options_against_the_result_take_no_suspects_place(tmp_path: Path) -> None:
    """Three options against the result, which are no suspects: queue, first token and further tokens all are."""
    arrivals = {"request_rate": 4.0, "max_concurrency": None, "duration": 300.0}
    load = {**arrivals, "mean_ttft_ms": 90_000.0, "mean_tpot_ms": 90.0}
    other = {"batch_size": 8, "input_len": 512, "output_len": 64}
    found = _diagnosed(tmp_path, {**SERVED, **load}, "llama-3.1-8b", "h100", **other)
    assert len(found.warnings) == 3
    late = {part.name for part in found.parts if part.outside and part.amount_s > 0.0}
    assert late == {"queue", "first token", "further tokens"}
    assert len(found.suspects) == 3


def test_a_steady_queue_is_simulated(tmp_path: Path) -> None:
    """As many requests are completed as arrive: a simulation tells that few wait, and the first token is late."""
    load = {"request_rate": 4.0, "max_concurrency": None, "duration": 51.0, "mean_ttft_ms": 900.0, "mean_tpot_ms": 12.0}
    parts = _parts(_diagnosed(tmp_path, {**SERVED, **load}, "llama-3.1-8b", "h100"))
    assert parts.get("queue", 0.0) < 0.1 * parts["first token"]


def test_evidence_of_a_metric_has_its_own_unit_and_that_of_a_request(tmp_path: Path) -> None:
    """30 ms for each of 127 further tokens: 3.81 s of a request."""
    found = _diagnosed(tmp_path, SERVED, "llama-3.1-8b", "h100")
    evidence = next(part.evidence for part in found.parts if part.name == "further tokens")
    assert evidence.startswith("tpot_ms 30 measured, ")
    assert "; of a request 3.81 s, " in evidence
    assert "queue" not in _parts(found)
    assert "e+" not in str(diagnosis_page.page(found))
