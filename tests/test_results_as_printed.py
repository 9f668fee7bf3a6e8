"""Results of benchmarks as people paste them: tables, printed summaries and summaries of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.calibrate.e2e_rows import case_of, quantization_of
from llmviewer.calibrate.readers.files import READERS, first_run, is_benchmark, table
from llmviewer.calibrate.readers.run import BenchmarkRun, Stated
from llmviewer.cli import main
from llmviewer.core import arguments
from llmviewer.core.errors import UserError
from llmviewer.server.arguments import schema

MARKDOWN = """ggml_cuda_init: found 1 CUDA devices:
| model                          |       size |     params | backend    | ngl | n_ubatch | fa |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | -------: | -: | --------------: | -------------------: |
| gpt-oss 20B MXFP4 MoE          |  11.27 GiB |    20.91 B | CUDA       |  99 |     2048 |  1 |          pp2048 |       3783.00 ± 9.00 |
| gpt-oss 20B MXFP4 MoE          |  11.27 GiB |    20.91 B | CUDA       |  99 |     2048 |  1 |            tg32 |         84.10 ± 0.20 |

build: 0000000 (1)
"""  # noqa: E501
PRINTED = """============ Serving Benchmark Result ============
Successful requests:                     64
Maximum request concurrency:             8
Benchmark duration (s):                  60.00
Total input tokens:                      65536
Total generated tokens:                  8192
Output token throughput (tok/s):         136.53
---------------Time to First Token----------------
Mean TTFT (ms):                          120.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          25.00
==================================================
"""
SUMMARY: dict[str, Any] = {
    "load_summary": {"count": 600, "send_duration": 100.0, "achieved_rate": 6.0},
    "successes": {
        "latency": {
            "request_latency": {"mean": 4.0}, "time_per_output_token": {"mean": 0.03},
            "time_to_first_token": {"mean": 0.2},
        },
        "throughput": {"output_tokens_per_sec": 768.0, "requests_per_sec": 6.0},
        "prompt_len": {"mean": 132.0},
        "output_len": {"mean": 128.0},
    },
}  # fmt: skip
SAID = Stated(hardware="gb10", model="gpt-oss-20b", engine="llama.cpp", output_len=32)


def run_of(folder: Path, text: str) -> BenchmarkRun:
    path = folder / "result"
    path.write_text(text, encoding="utf-8")
    assert is_benchmark(path)
    found = first_run(path)
    assert found is not None
    return found


def test_the_table_of_llama_bench_is_read_as_its_json(tmp_path: Path) -> None:
    run = run_of(tmp_path, MARKDOWN)
    assert (run.figures, run.input_len, run.output_len) == ({"throughput_tok_s": 3783.0}, 2048.0, 0.0)
    assert (run.attention, run.token_budget, run.weight_dtype, run.model) == ("flash", 2048, "mxfp4_moe", "gpt-oss-20B")
    rows = table(tmp_path / "result", SAID).frame
    assert rows["value"].tolist() == [3783.0, 84.1]
    # experts in MXFP4 and all else in Q8_0, though the checkpoint itself has MXFP4 and 16 bit
    assert quantization_of("mxfp4_moe", "none", "gpt-oss-20b") == "mxfp4_moe"
    assert quantization_of("mxfp4", "none", "gpt-oss-20b") == "none"


@pytest.mark.parametrize(
    ("test", "figures"),
    [
        ("pp512", {"throughput_tok_s": 100.0}),
        ("tg128", {"decode_tok_s": 100.0}),
        ("pp300+tg200", {"latency_ms": 5000.0}),
        ("tg128 @ d4096", {"tpot_ms": 10.0}),
    ],
)
def test_every_test_of_llama_bench_is_read(test: str, figures: dict[str, float], tmp_path: Path) -> None:
    text = f"| model | test | t/s |\n| --- | --: | --: |\n| llama 8B Q4_K - Medium | {test} | 100.0 ± 1.0 |\n"
    run = run_of(tmp_path, text)
    assert (dict(run.figures), run.weight_dtype, run.model) == (figures, "q4_k_m", "llama-8B")


def test_a_row_without_a_test_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    path.write_text("| model | test | t/s |\n|--|--|--|\n| llama 8B | all | fast |\n")
    with pytest.raises(UserError, match="has no test such as pp512"):
        table(path, SAID)


@pytest.mark.parametrize(("column", "value"), [("n_cpu_moe", "8"), ("nkvo", "1"), ("ot", "exps=CPU")])
def test_what_ran_on_the_processor_is_refused_in_a_table_too(column: str, value: str, tmp_path: Path) -> None:
    text = f"| model | {column} | test | t/s |\n|--|--|--|--|\n| llama 8B Q4_K - Medium | {value} | pp512 | 100.0 |\n"
    path = tmp_path / "table.md"
    path.write_text(text)
    with pytest.raises(UserError, match="what runs on the processor is not predicted"):
        table(path, SAID)


def test_a_format_with_its_bits_is_the_format(tmp_path: Path) -> None:
    text = "| model | test | t/s |\n|--|--|--|\n| llama 8B IQ4_XS - 4.25 bpw | pp512 | 100.0 |\n"
    run = run_of(tmp_path, text)
    assert (run.weight_dtype, run.model) == ("iq4_xs", "llama-8B")


@pytest.mark.parametrize("line", ["Acceptance length:    2.50", "Accept length:    3.10"])
def test_a_printed_run_with_drafts_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "printed.txt"
    path.write_text(f"{PRINTED}{line}\n")
    with pytest.raises(UserError, match="the run used speculative decoding"):
        table(path, SAID)


def test_the_rate_and_the_limit_that_sglang_prints_are_read(tmp_path: Path) -> None:
    limited = run_of(tmp_path, PRINTED.replace("Maximum request", "Max request"))
    assert (limited.batch, limited.arrivals) == (8.0, None)
    words = "Traffic request rate:                    4.0\nMax request concurrency:             not set"
    sent = run_of(tmp_path, PRINTED.replace("Maximum request concurrency:             8", words))
    assert sent.arrivals is not None and sent.arrivals.rate == 4.0


@pytest.mark.parametrize(
    ("written", "attention"), [(True, "flash"), ("1", "flash"), (False, "eager"), (-1, ""), (None, "")]
)
def test_what_ran_is_what_is_predicted(written: object, attention: str, tmp_path: Path) -> None:
    """llama-bench states attention and micro-batch; the preset's are eager and 512."""
    record = {
        "model_filename": "gpt-oss-20b-mxfp4.gguf", "n_prompt": 2048, "n_gen": 0, "avg_ts": 10.0, "n_gpu_layers": 99,
        "flash_attn": written, "n_ubatch": 1024,
    }  # fmt: skip
    run_of(tmp_path, json.dumps([record]))
    case = case_of(table(tmp_path / "result", SAID).frame.iloc[0].to_dict())
    assert dict(case.options).get("attention", "") == attention and case.token_budget == 1024


@pytest.mark.parametrize(("rate", "said"), [(6000, ""), (60, ""), (12_000, "kernels of 2024"), (90_000, "roofline")])
def test_a_run_faster_than_the_old_preset_of_llama_cpp_is_not_accused(rate: int, said: str, tmp_path: Path) -> None:
    """Predicted: 4,582 to 10,261 tokens of prompts per second at 80 %; the roofline stands above 12,000."""
    path = tmp_path / "table.md"
    path.write_text(f"| model | ngl | test | t/s |\n|--|--|--|--|\n| llama 8B Q4_K - Medium | 99 | pp512 | {rate} |\n")
    found = lv.diagnose(path, "llama-3.1-8b", "rtx-4090", engine="llama.cpp", quantization="q4_k_m")
    told = [one for one in found.warnings if "kernels of 2024" in one or "roofline" in one]
    assert len(told) == bool(said) and all(said in one for one in told)


def test_what_vllm_prints_is_read_as_its_file(tmp_path: Path) -> None:
    """65,536 / 64 = 1,024 and 8,192 / 64 = 128 tokens of a request."""
    run = run_of(tmp_path, f"INFO ready\n{PRINTED}")
    assert (run.batch, run.input_len, run.output_len, run.engine) == (8.0, 1024.0, 128.0, "vllm")
    assert run.figures == {"ttft_ms": 120.0, "tpot_ms": 25.0, "throughput_tok_s": 136.53}


def test_the_summary_of_inference_perf_is_read(tmp_path: Path) -> None:
    """6 requests a second for 4 s each: 24 at a time."""
    run = run_of(tmp_path, json.dumps(SUMMARY))
    assert (run.batch, run.input_len, run.output_len) == (24.0, 132.0, 128.0)
    expected = {"ttft_ms": 200.0, "tpot_ms": 30.0, "latency_ms": 4000.0, "throughput_tok_s": 768.0}
    assert run.figures == pytest.approx(expected)
    assert run.arrivals is not None and run.arrivals.rate == 6.0


@pytest.mark.parametrize("wrong", [None, [], "text", 3, {"latency": None}, {"latency": [1], "throughput": "x"}])
def test_a_summary_of_other_types_has_no_figures(wrong: object, tmp_path: Path) -> None:
    assert run_of(tmp_path, json.dumps({**SUMMARY, "successes": wrong})).figures == {}


@pytest.mark.parametrize("layout", ["one", "lines"])
def test_json_that_holds_a_printed_result_is_json(layout: str, tmp_path: Path) -> None:
    """A field such as the log of a run may hold what another program printed, or a table."""
    noted = {**SUMMARY, "log": PRINTED + MARKDOWN}
    text = json.dumps(noted, indent=1) if layout == "one" else json.dumps(noted) + "\n" + json.dumps(noted)
    assert run_of(tmp_path, text) == run_of(tmp_path, json.dumps(SUMMARY))


@pytest.mark.parametrize("first", ["[INFO] started", "{rank 0} started"])
def test_a_log_that_begins_like_json_is_read_as_printed(first: str, tmp_path: Path) -> None:
    assert run_of(tmp_path, f"{first}\n{PRINTED}") == run_of(tmp_path, PRINTED)


def test_every_program_that_is_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The one list of programs has every reader, and the help of both commands and the tools for assistants have it."""
    named = [one.lower() for one in arguments.BENCHMARKS.split(", ")]
    for reader in READERS:
        assert any(one in reader.lower() for one in named), reader
    assert all(any(one in reader.lower() for reader in READERS) for one in named)
    for command in (["diagnose"], ["calibrate", "validate"]):
        assert main([*command, "--help"]) == 0
        assert "".join(arguments.BENCHMARKS.split()) in "".join(capsys.readouterr().out.split())  # lines are broken
    assert arguments.BENCHMARKS in schema("diagnose")["properties"]["measured"]["description"]
