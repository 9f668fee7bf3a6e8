"""Reader of the summary of inference-perf, whose times are seconds.

Fields: https://github.com/kubernetes-sigs/inference-perf/blob/main/docs/reports.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.calibrate.readers.run import Arrivals, BenchmarkRun, Record, at_path, concurrency, number

#: Metric -> path of its object in `successes`, the field of its value, and a factor to the metric's unit.
FIGURES = {
    "ttft_ms": ("latency.time_to_first_token", "mean", 1e3),
    "tpot_ms": ("latency.time_per_output_token", "mean", 1e3),
    "latency_ms": ("latency.request_latency", "mean", 1e3),
    "throughput_tok_s": ("throughput", "output_tokens_per_sec", 1.0),
}


def inference_perf(record: Record) -> BenchmarkRun | None:
    """The run of a summary; None for another record.  Requests in flight: completed per second x mean latency."""
    if not {"load_summary", "successes"} <= set(record):
        return None
    found = {name: _value(record, path, field) for name, (path, field, _) in FIGURES.items()}
    figures = {name: value * FIGURES[name][2] for name, value in found.items() if value is not None}
    rate, latency_ms = _value(record, "throughput", "requests_per_sec"), figures.get("latency_ms")
    batch, note = concurrency(rate, latency_ms and latency_ms / 1e3, None)
    load = record["load_summary"] if isinstance(record["load_summary"], Mapping) else {}
    asked, count, duration = (number(load, name) for name in ("achieved_rate", "count", "send_duration"))
    arrivals = Arrivals(rate=asked, completed=count, duration_s=duration) if asked and count and duration else None
    return BenchmarkRun(
        program="inference-perf", figures=figures, batch=batch, note=note, arrivals=arrivals,
        input_len=_value(record, "prompt_len", "mean"), output_len=_value(record, "output_len", "mean"),
    )  # fmt: skip


def _value(record: Record, path: str, field: str) -> float | None:
    """A number in an object of `successes`; None if one of them is missing or of another type."""
    place = at_path(record["successes"], path)
    return number(place, field) if isinstance(place, Mapping) else None
