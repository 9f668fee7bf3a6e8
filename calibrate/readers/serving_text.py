"""Reader of what `vllm bench serve` and SGLang's `bench_serving` print after a run, copied from a terminal.

Lines: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llmviewer.calibrate.readers.run import Record

#: Words of the first line.
BEGIN = "Serving Benchmark Result"
#: Printed name in lower case -> field of the JSON of `vllm bench serve`.
FIELDS = {
    "successful requests": "completed",
    "maximum request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
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
LINE = re.compile(r"^(.+?):\s+(\S+)\s*$")


def records(text: str) -> Iterator[Record]:
    """A record for each result in a text, with the fields of the JSON of the same program; it names no model."""
    for part in text.split(BEGIN)[1:]:
        lines = filter(None, map(LINE.match, part.splitlines()))
        stated = {FIELDS[found[1].lower()]: found[2] for found in lines if found[1].lower() in FIELDS}
        yield {"model_id": "", **stated}
