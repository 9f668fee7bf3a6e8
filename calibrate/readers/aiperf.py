"""Reader of the JSON of genai-perf and of its successor AIPerf: one object of statistics for each metric.

Fields: https://docs.nvidia.com/aiperf/reference/json-export-schema and
https://docs.nvidia.com/aiperf/reference/ai-perf-metrics-reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.calibrate.readers.run import BenchmarkRun, Record, concurrency, engine_named, number
from llmviewer.core.errors import UserError, unknown

#: Metric -> metric of the file.
FIGURES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "latency_ms": "request_latency",
    "throughput_tok_s": "output_token_throughput",
}
#: Metrics without which a file is of another program.
SIGNS = ("request_latency", "output_sequence_length")
#: Unit of a time in the file -> milliseconds.
MILLISECONDS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}
#: Paths in `input_config`, by version: names of the model, limit of concurrent requests, rate of arrivals, server.
MODELS = ("endpoint.model_names", "endpoint.model", "models.items", "model_names", "model")
CONCURRENCY = ("loadgen.concurrency", "perf_analyzer.stimulus.concurrency", "concurrency")
RATES = ("loadgen.request_rate", "perf_analyzer.stimulus.request_rate", "request_rate")
SERVERS = ("endpoint.backend", "backend")


def aiperf(record: Record) -> BenchmarkRun | None:
    """The run of `profile_export_aiperf.json` or `profile_export_genai_perf.json`; None for another record.

    A limit of concurrent requests is their number, unless they arrive at a finite rate.
    `inter_token_latency` is (latency - first token) / (tokens - 1) of a request, which is TPOT.
    """
    if not all(isinstance(record.get(name), Mapping) and "avg" in record[name] for name in SIGNS):
        return None
    figures = {metric: _average(record, name, metric) for metric, name in FIGURES.items()}
    stated = {metric: value for metric, value in figures.items() if value is not None}
    model, limit = _first(record, MODELS), _first(record, CONCURRENCY)
    rate, latency_ms = _statistic(record, "request_throughput"), stated.get("latency_ms")
    most = number({"limit": limit}, "limit")
    at_a_rate = number({"rate": _first(record, RATES)}, "rate")
    seconds = latency_ms and latency_ms / 1e3
    batch, note = (most, "") if most and not at_a_rate else concurrency(rate, seconds, most)
    return BenchmarkRun(
        program="AIPerf", figures=stated, batch=batch, note=note,
        model=str(model.get("name", "") if isinstance(model, Mapping) else model or ""),
        engine=engine_named(_first(record, SERVERS)),
        input_len=_statistic(record, "input_sequence_length"), output_len=_statistic(record, "output_sequence_length"),
    )  # fmt: skip


def _statistic(record: Record, name: str) -> float | None:
    """The mean of a metric in the unit of the file."""
    entry = record.get(name)
    return number(entry, "avg") if isinstance(entry, Mapping) else None


def _average(record: Record, name: str, metric: str) -> float | None:
    """The mean of a metric, times in milliseconds.  Raises UserError for an unknown unit."""
    value = _statistic(record, name)
    if value is None or not metric.endswith("_ms"):
        return value
    unit = str(record[name].get("unit", "ms"))
    if unit not in MILLISECONDS:
        raise unknown(f"unit of {name}", unit, MILLISECONDS)
    return value * MILLISECONDS[unit]


def _first(record: Record, paths: tuple[str, ...]) -> Any:
    """The first stated value of `input_config` among these paths; a list's only item stands for the list."""
    for path in paths:
        value: Any = record.get("input_config")
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list):
            if len(value) > 1:
                raise UserError(f"input_config.{path} has {len(value)} values; one run has one")
            value = value[0] if value else None
        if value is not None:
            return value
    return None
