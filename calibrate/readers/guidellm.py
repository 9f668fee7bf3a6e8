"""Reader of the report of guidellm, one run for each of its `benchmarks`.

Fields: https://github.com/vllm-project/guidellm/blob/main/src/guidellm/benchmark/schemas/metrics.py; what the metrics
mean: https://github.com/vllm-project/guidellm/blob/main/docs/guides/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llmviewer.calibrate.readers.run import Arrivals, BenchmarkRun, Record, at_path, number

#: Metric -> metric of the file, and a factor to the metric's unit.  Its `time_per_output_token_ms` counts the first
#: token too; `inter_token_latency_ms` does not, which is TPOT.
FIGURES = {
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "latency_ms": ("request_latency", 1e3),
    "throughput_tok_s": ("output_tokens_per_second", 1.0),
}
#: Metrics without which a record is of another program.
SIGNS = ("request_latency", "output_token_count", "prompt_token_count")
#: Paths of the model and the strategy, by version.
MODELS = ("config.backend.model", "report.args.model", "worker.backend_model", "args.model")
STRATEGIES = ("config.strategy", "args.strategy")
#: Lists that a report has its runs in.
RUNS = "benchmarks"


def runs_of(report: Record) -> Iterator[Record]:
    """The runs of a report, each with the report's own fields as `report`."""
    shared = {name: value for name, value in report.items() if name != RUNS}
    for run in report[RUNS]:
        yield {**run, "report": shared} if isinstance(run, Mapping) else run


def guidellm(record: Record) -> BenchmarkRun | None:
    """The run of one benchmark of a report; None for another record.  Means are of the successful requests."""
    metrics = record.get("metrics")
    if not isinstance(metrics, Mapping) or not set(SIGNS) <= set(metrics):
        return None
    found = {name: _mean(metrics, metric) for name, (metric, _) in FIGURES.items()}
    figures = {name: value * FIGURES[name][1] for name, value in found.items() if value is not None}
    batch = _mean(metrics, "request_concurrency")
    strategy = next((one for path in STRATEGIES if isinstance(one := at_path(record, path), Mapping)), {})
    model = next((one for path in MODELS if isinstance(one := at_path(record, path), str)), "")
    return BenchmarkRun(
        program="guidellm", figures=figures, model=model, batch=batch and max(batch, 1.0),
        note=f"{batch:.3g} concurrent requests in the mean" if batch else "", arrivals=_arrivals(record, strategy),
        input_len=_mean(metrics, "prompt_token_count"), output_len=_mean(metrics, "output_token_count"),
    )  # fmt: skip


def _mean(metrics: Mapping[str, Any], name: str) -> float | None:
    """The mean of a metric over the requests that were completed."""
    of_status = at_path(metrics, f"{name}.successful")
    return number(of_status, "mean") if isinstance(of_status, Mapping) else None


def _arrivals(record: Record, strategy: Mapping[str, Any]) -> Arrivals | None:
    """The arrivals of a run at a rate (`constant`, `poisson`, `async`); None for one with so many at a time."""
    made, duration = at_path(record, "metrics.request_totals"), number(record, "duration")
    completed = number(made, "successful") if isinstance(made, Mapping) else None
    rate = number(strategy, "rate")
    return Arrivals(rate=rate, completed=completed, duration_s=duration) if rate and completed and duration else None
