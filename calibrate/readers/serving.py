"""Readers of the JSON of `vllm bench` and of SGLang's `bench_serving`, and of what both print.

Fields: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py, latency.py and throughput.py beside it,
and https://docs.sglang.ai/developer_guide/bench_serving.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmviewer.calibrate.readers.run import (
    Arrivals,
    BenchmarkRun,
    Record,
    concurrency,
    engine_named,
    figures_of,
    number,
    without_speculation,
)
from llmviewer.core.errors import UserError

#: Fields that both programs write after a run against a server.
SERVED = ("completed", "total_input_tokens", "total_output_tokens", "duration")
#: Metric -> field of both programs.
FIGURES = {"ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms", "throughput_tok_s": "output_throughput"}

#: Words of the first line.
PRINTED = "Serving Benchmark Result"
#: Printed name in lower case -> field of the JSON of `vllm bench serve`.
PRINTED_FIELDS = {
    "successful requests": "completed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "acceptance length": "spec_decode_acceptance_length",
    "accept length": "spec_decode_acceptance_length",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "output token throughput (tok/s)": "output_throughput",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean e2el (ms)": "mean_e2el_ms",
    "mean e2e latency (ms)": "mean_e2el_ms",
    "backend": "backend",
}
PRINTED_LINE = re.compile(r"^(.+?):\s+(\S+)\s*$")


def vllm_serve(record: Record) -> BenchmarkRun | None:
    """The run of a result of `vllm bench serve --save-result`; None for another record."""
    if not {*SERVED, "model_id"} <= set(record):
        return None
    without_speculation(number(record, "spec_decode_acceptance_length"))
    engine = engine_named(record.get("backend") or record.get("endpoint_type")) or "vllm"
    return _served(record, "vllm bench serve", engine, "mean_e2el_ms", model=str(record["model_id"]))


def sglang(record: Record) -> BenchmarkRun | None:
    """The run of a result of `sglang.bench_serving`, which does not state the model; None for another record."""
    if not {*SERVED, "backend", "total_output_tokens_retokenized"} <= set(record):
        return None
    without_speculation(number(record, "accept_length"))
    return _served(record, "sglang.bench_serving", engine_named(record["backend"]), "mean_e2e_latency_ms")


def _served(record: Record, program: str, engine: str, latency: str, model: str = "") -> BenchmarkRun:
    """The run of a record with the fields SERVED: mean lengths are total tokens over completed requests."""
    completed, duration = number(record, "completed"), number(record, "duration")
    if completed is None:
        raise UserError("no request of this run was completed")
    figures = figures_of(record, {**FIGURES, "latency_ms": latency})
    lengths = {name: (number(record, f"total_{name}_tokens") or 0.0) / completed for name in ("input", "output")}
    mean_ms = figures.get("latency_ms")
    if mean_ms is None and {"ttft_ms", "tpot_ms"} <= set(figures):
        mean_ms = figures["ttft_ms"] + figures["tpot_ms"] * max(lengths["output"] - 1.0, 0.0)
    limit = number(record, "max_concurrency")
    batch: float | None
    if limit is not None and _unlimited(record):
        batch, note = min(limit, completed), ""
    else:
        rate = completed / duration if duration else None
        batch, note = concurrency(rate, mean_ms and mean_ms / 1e3, limit)
    arriving = number(record, "request_rate")
    arrivals = None
    if arriving is not None and duration is not None and limit is None:
        arrivals = Arrivals(rate=arriving, completed=completed, duration_s=duration)
    return BenchmarkRun(
        program=program, model=model, engine=engine, figures=figures, batch=batch, note=note,
        input_len=lengths["input"], output_len=lengths["output"], arrivals=arrivals,
    )  # fmt: skip


def _unlimited(record: Record) -> bool:
    """Whether requests were sent as soon as a place was free, not at a finite rate or at the times of a trace."""
    return str(record.get("request_rate", "inf")).lower() in ("inf", "infinity", "none")


def vllm_latency(record: Record) -> BenchmarkRun | None:
    """The run of a result of `vllm bench latency`: one static batch, whose sizes the file does not state."""
    if not {"avg_latency", "latencies", "percentiles"} <= set(record):
        return None
    seconds = number(record, "avg_latency")
    figures = {} if seconds is None else {"latency_ms": seconds * 1e3}
    return BenchmarkRun(program="vllm bench latency", engine="vllm", batching="static", figures=figures)


def vllm_throughput(record: Record) -> BenchmarkRun | None:
    """The run of a result of `vllm bench throughput`: all requests at once; prompt and answer are not told apart."""
    if not {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second"} <= set(record):
        return None
    return BenchmarkRun(
        program="vllm bench throughput",
        engine="vllm",
        batch=number(record, "num_requests"),
        figures=figures_of(record, {"requests_s": "requests_per_second"}),
    )


def printed_results(text: str) -> Iterator[Record]:
    """A record for each result in a text, with the fields of the JSON of the same program; it names no model."""
    for part in text.split(PRINTED)[1:]:
        lines = filter(None, map(PRINTED_LINE.match, part.splitlines()))
        stated = {PRINTED_FIELDS[found[1].lower()]: found[2] for found in lines if found[1].lower() in PRINTED_FIELDS}
        yield {"model_id": "", **stated}
