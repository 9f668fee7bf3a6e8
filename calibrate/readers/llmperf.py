"""Reader of the summary of Ray's llmperf (`token_benchmark_ray.py`), whose times are seconds.

Fields: https://github.com/ray-project/llmperf/blob/main/token_benchmark_ray.py; a summary:
https://github.com/ray-project/llmperf/tree/main/benchmarks/results.
"""

from __future__ import annotations

from llmviewer.calibrate.readers.run import BenchmarkRun, Record, number

#: Fields without which a record is of another program.
SIGNS = ("num_concurrent_requests", "results_end_to_end_latency_s_mean", "results_number_output_tokens_mean")


def llmperf(record: Record) -> BenchmarkRun | None:
    """The run of a summary; None for another record.

    Its inter-token latency is the whole latency over the tokens, the first one included; TPOT is (latency - first
    token) / (tokens - 1), from the means.
    """
    if not set(SIGNS) <= set(record):
        return None
    latency_s, first_s = (number(record, f"results_{name}_s_mean") for name in ("end_to_end_latency", "ttft"))
    prompt, answer = (number(record, f"results_number_{name}_tokens_mean") for name in ("input", "output"))
    figures = {
        "ttft_ms": first_s and first_s * 1e3,
        "tpot_ms": (latency_s - first_s) / (answer - 1.0) * 1e3
        if latency_s and first_s and answer and answer > 1.0
        else None,
        "latency_ms": latency_s and latency_s * 1e3,
        "throughput_tok_s": number(record, "results_mean_output_throughput_token_per_s"),
    }
    return BenchmarkRun(
        program="llmperf", figures={name: value for name, value in figures.items() if value},
        model=str(record.get("model") or ""), batch=number(record, "num_concurrent_requests"),
        input_len=prompt, output_len=answer, note="TPOT: (mean latency - mean first token) / (mean tokens - 1)",
    )  # fmt: skip
