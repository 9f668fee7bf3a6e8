"""Reader of a snapshot of the /metrics page of vLLM or SGLang: means since the server began.

Names: https://docs.vllm.ai/en/v0.12.0/design/metrics/ and
https://github.com/sgl-project/sglang/blob/main/docs/references/production_metrics.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmviewer.calibrate.readers.run import BenchmarkRun, Record

#: Beginnings of comment lines of the format.
SIGNS = ("# HELP ", "# TYPE ")
#: A line of a metric of one of the engines: engine, metric, labels, value.
LINE = re.compile(r"^(vllm|sglang):(\w+?)(?:\{(.*)\})?\s+(\S+)\s*$", re.MULTILINE)
MODEL = re.compile(r'model_name="([^"]*)"')
#: Metric of end-to-end tables [ms] -> histograms of seconds, the first that has entries.
HISTOGRAMS = {
    "ttft_ms": ("time_to_first_token_seconds",),
    "tpot_ms": (
        "request_time_per_output_token_seconds",
        "inter_token_latency_seconds",
        "time_per_output_token_seconds",
    ),
    "latency_ms": ("e2e_request_latency_seconds",),
}
#: Length of a request -> its histogram, and counters of its tokens and of the requests where there is none.
LENGTHS = {
    "input_len": ("request_prompt_tokens", "prompt_tokens_total"),
    "output_len": ("request_generation_tokens", "generation_tokens_total"),
}
REQUESTS, RUNNING = "num_requests_total", ("num_requests_running", "num_running_reqs")
NOTE = "means since the server began; concurrent requests as of the snapshot"


def is_snapshot(text: str) -> bool:
    """Whether a text has comment lines of Prometheus' format."""
    return any(line.startswith(SIGNS) for line in text.splitlines())


def of_snapshot(text: str) -> Iterator[Record]:
    """One record: engine, model and the sums of every metric over its labels."""
    record: dict[str, object] = {}
    for engine, metric, labels, value in LINE.findall(text):
        if "_bucket" not in metric:
            named = MODEL.search(labels)
            record |= {"prometheus": engine, "model_name": named[1] if named else ""}
            record[metric] = float(str(record.get(metric, 0.0))) + float(value)
    yield record


def prometheus(record: Record) -> BenchmarkRun | None:
    """The run of a record of `of_snapshot`; None for another record."""
    if "prometheus" not in record:
        return None

    def mean(name: str) -> float | None:
        count = float(record.get(f"{name}_count") or 0.0)
        return float(record.get(f"{name}_sum") or 0.0) / count if count else None

    figures = {}
    for metric, names in HISTOGRAMS.items():
        found = next((value for name in names if (value := mean(name))), None)
        if found:
            figures[metric] = 1e3 * found
    requests = float(record.get(REQUESTS) or 0.0)
    lengths = {
        name: mean(histogram) or (float(record.get(counter) or 0.0) / requests if requests else None)
        for name, (histogram, counter) in LENGTHS.items()
    }
    running = sum(float(record.get(name) or 0.0) for name in RUNNING)
    return BenchmarkRun(
        program=f"metrics of {record['prometheus']}", engine=str(record["prometheus"]), figures=figures,
        model=str(record["model_name"]), batch=running or None, note=NOTE, input_len=lengths["input_len"],
        output_len=lengths["output_len"],
    )  # fmt: skip
