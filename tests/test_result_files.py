"""Results of benchmarks in every format that is read, each with the values worked by hand from its file."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmviewer as lv
from llmviewer.calibrate.readers import files
from llmviewer.calibrate.readers.run import Arrivals, BenchmarkRun

FOLDER = Path(__file__).resolve().parent / "data" / "results"


def runs(name: str) -> list[BenchmarkRun]:
    """The runs of a file of tests/data/results."""
    assert files.is_benchmark(FOLDER / name)
    return [files._run(record, name) for record in files._records(FOLDER / name)]


#: File -> for each of its runs: figures, concurrent requests, prompt and answer tokens.
WORKED = {
    # 64 x 1,024 and 128 tokens, 8 at a time of which 4 run
    "vllm_serve.json": [({"ttft_ms": 120.0, "tpot_ms": 25.0, "throughput_tok_s": 136.53}, 4.0, 1024.0, 128.0)],
    "vllm_serve.txt": [({"ttft_ms": 120.0, "tpot_ms": 25.0, "throughput_tok_s": 136.53}, 8.0, 1024.0, 128.0)],
    "sglang_serving.json": [
        ({"ttft_ms": 200.0, "tpot_ms": 29.9, "throughput_tok_s": 512.0, "latency_ms": 4000.0}, 16.0, 1024.0, 128.0)
    ],
    # 120 in 60 s x 2.2 s = 4.4 at a time
    "sglang_serving.txt": [
        ({"ttft_ms": 90.0, "tpot_ms": 16.61, "throughput_tok_s": 256.0, "latency_ms": 2200.0}, 4.4, 1024.0, 128.0)
    ],
    # TPOT without the first token: inter_token_latency_ms; latencies in seconds
    "guidellm.json": [
        ({"ttft_ms": 120.0, "tpot_ms": 24.25, "latency_ms": 3200.0, "throughput_tok_s": 320.0}, 8.0, 1024.0, 128.0),
        ({"ttft_ms": 90.0, "tpot_ms": 16.6, "latency_ms": 2200.0, "throughput_tok_s": 256.0}, 4.4, 1024.0, 128.0),
    ],
    # (9,475.706 - 1,713.711) ms / 158.18 tokens; its own inter-token latency, 59.55 ms, is 9,475.7 / 159.18
    "llmperf.json": [
        (
            {"ttft_ms": 1713.711, "tpot_ms": 49.0707, "latency_ms": 9475.706, "throughput_tok_s": 64.53541},
            4.0, 550.0, 159.18,
        )
    ],
    # 6 in a second x 4 s = 24 at a time
    "inference_perf.json": [
        ({"ttft_ms": 200.0, "tpot_ms": 30.0, "latency_ms": 4000.0, "throughput_tok_s": 768.0}, 24.0, 132.0, 128.0)
    ],
    "llama_bench.csv": [
        ({"throughput_tok_s": 7285.676949}, 1.0, 512.0, 0.0), ({"decode_tok_s": 119.915244}, 1.0, 0.0, 128.0)
    ],
    "llama_bench.md": [({"throughput_tok_s": 1436.51}, 1.0, 1024.0, 0.0), ({"decode_tok_s": 132.19}, 1.0, 0.0, 128.0)],
}  # fmt: skip
WORKED["llama_bench.sql"] = WORKED["llama_bench.csv"]


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_every_format_is_read_as_worked_by_hand(name: str) -> None:
    for run, (figures, batch, prompt, answer) in zip(runs(name), WORKED[name], strict=True):
        assert dict(run.figures) == {metric: pytest.approx(value, rel=1e-5) for metric, value in figures.items()}
        assert (run.batch, run.input_len, run.output_len) == pytest.approx((batch, prompt, answer))


def test_what_a_result_states_of_its_server_is_predicted() -> None:
    (vllm,), (sglang,) = runs("vllm_serve.json"), runs("sglang_serving.json")
    assert (vllm.engine, vllm.tensor, vllm.token_budget) == ("vllm==0.12.0", 2, 2048)
    assert vllm.note == "at most 4 of 8 requests run at once (max_num_seqs): the wait is not predicted"
    assert (sglang.engine, sglang.tensor, sglang.token_budget) == ("sglang==0.5.9", 2, 4096)
    assert (sglang.model, sglang.kv_dtype) == ("meta-llama/Llama-3.1-8B-Instruct", "fp8")
    found = lv.diagnose(FOLDER / "sglang_serving.json", "llama-3.1-8b", "h100-sxm").to_dict()
    alone = lv.diagnose(FOLDER / "sglang_serving.json", "llama-3.1-8b", "h100-sxm", tensor_parallel_size=1).to_dict()
    assert found["engine"] == "sglang==0.5.9" and found["predicted_s"] < alone["predicted_s"]


def test_the_flags_of_llama_bench_are_those_of_the_prediction() -> None:
    """Passes of n_batch tokens, where n_ubatch, 512 by default, is more; attention, cache and format as stated."""
    prompt, answer = runs("llama_bench.md")
    assert (prompt.token_budget, prompt.attention, prompt.kv_dtype) == (128, "flash", "int8")
    assert (prompt.model, prompt.weight_dtype, answer.attention) == ("llama-7B", "q4_0", "eager")
    assert not prompt.note and answer.note.startswith("the cache has values in q4_0; all of it is predicted as q8_0")
    (first, _), (same, _) = runs("llama_bench.csv"), runs("llama_bench.sql")
    assert first == same and (first.hardware, first.token_budget) == ("rtx-4080", 512)


def test_runs_at_a_rate_have_arrivals_and_runs_of_so_many_users_have_none() -> None:
    limited, sent = runs("guidellm.json")
    assert (limited.arrivals, sent.arrivals) == (None, Arrivals(rate=2.0, completed=120.0, duration_s=60.0))
    assert runs("sglang_serving.txt")[0].arrivals == Arrivals(rate=2.0, completed=120.0, duration_s=60.0)


def test_each_printed_summary_is_of_its_program() -> None:
    assert [runs(name)[0].program for name in ("vllm_serve.txt", "sglang_serving.txt")] == [
        "vllm bench serve", "sglang.bench_serving"
    ]  # fmt: skip
