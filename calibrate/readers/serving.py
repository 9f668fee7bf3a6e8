"""Readers of the JSON of `vllm bench` and of SGLang's `bench_serving`, and of what both print.

Fields: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py, latency.py and throughput.py beside it,
and https://github.com/sgl-project/sglang/blob/main/python/sglang/benchmark/serving.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from llmviewer.timing.engine_memory import PINNED, VERSION

#: Fields that both programs write after a run against a server.
SERVED = ("completed", "total_input_tokens", "total_output_tokens", "duration")
#: Metric -> field of both programs.
FIGURES = {"ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms", "throughput_tok_s": "output_throughput"}

#: Facts of the server -> fields in which a file may state them: `--metadata` of `vllm bench serve`, and SGLang's
#: `server_info` (https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/server_args.py).
SERVER = {
    "tensor": ("tensor_parallel_size", "tp_size", "tp"),
    "pipeline": ("pipeline_parallel_size", "pp_size", "pp"),
    "token_budget": ("max_num_batched_tokens", "chunked_prefill_size"),
    "sequences": ("max_num_seqs", "max_running_requests"),
    "data": ("data_parallel_size", "dp_size", "dp"),
}
#: Formats of a cache of 8 bits.
FP8_CACHES = ("fp8", "fp8_e4m3", "fp8_e5m2")
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
    "mean e2e latency (ms)": "mean_e2e_latency_ms",
    "total generated tokens (retokenized)": "total_output_tokens_retokenized",
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
    run = BenchmarkRun(
        program=program, model=model, engine=engine, figures=figures, batch=batch, note=note,
        input_len=lengths["input"], output_len=lengths["output"], arrivals=arrivals,
    )  # fmt: skip
    return _of_server(run, server if isinstance(server := record.get("server_info"), Mapping) else record)


def _of_server(run: BenchmarkRun, server: Record) -> BenchmarkRun:
    """The run with what its file states of the server: version, devices, limits and format of the cache."""

    def stated(fact: str) -> int:
        return int(next(filter(None, (number(server, field) for field in SERVER[fact])), 0))

    notes, batch = [run.note] if run.note else [], run.batch
    most, ranks, version = stated("sequences"), stated("data"), str(server.get("version") or "")
    if most and batch and most < batch:
        notes.append(f"at most {most} of {batch:.3g} requests run at once (max_num_seqs): the wait is not predicted")
        batch = float(most)
    if ranks > 1:
        notes.append(f"the server has {ranks} data-parallel ranks; one alone is predicted")
    return replace(
        run, batch=batch, note="; ".join(notes), model=run.model or str(server.get("model_path") or ""),
        tensor=stated("tensor") or 1, pipeline=stated("pipeline") or 1, token_budget=stated("token_budget"),
        kv_dtype="fp8" if str(server.get("kv_cache_dtype")) in FP8_CACHES else "",
        engine=f"{run.engine}{PINNED}{version}" if run.engine and VERSION.fullmatch(version) else run.engine,
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


def sglang_one_batch(record: Record) -> BenchmarkRun | None:
    """The run of a result of `sglang.bench_one_batch`: one static batch, without a server.

    Fields: https://github.com/sgl-project/sglang/blob/main/python/sglang/bench_one_batch.py.
    """
    if not {"batch_size", "input_len", "output_len", "prefill_latency", "total_latency"} <= set(record):
        return None
    seconds = figures_of(
        record, {"ttft_ms": "prefill_latency", "tpot_ms": "median_decode_latency", "latency_ms": "total_latency"}
    )
    return BenchmarkRun(
        program="sglang.bench_one_batch", engine="sglang", batching="static", batch=number(record, "batch_size"),
        figures={name: value * 1e3 for name, value in seconds.items()},
        input_len=number(record, "input_len"), output_len=number(record, "output_len"),
    )  # fmt: skip


def printed_results(text: str) -> Iterator[Record]:
    """A record for each result in a text, with the fields of the JSON of the same program; it names no model."""
    for part in text.split(PRINTED)[1:]:
        lines = filter(None, map(PRINTED_LINE.match, part.splitlines()))
        stated = {PRINTED_FIELDS[found[1].lower()]: found[2] for found in lines if found[1].lower() in PRINTED_FIELDS}
        yield stated if "total_output_tokens_retokenized" in stated else {"model_id": "", **stated}
