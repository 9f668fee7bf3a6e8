"""Files of benchmark programs, told apart by content: records, and the reader that knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate.readers.aiperf import aiperf
from llmviewer.calibrate.readers.guidellm import RUNS, guidellm, runs_of
from llmviewer.calibrate.readers.inference_perf import inference_perf
from llmviewer.calibrate.readers.llama_bench import SIGNS, SQL, is_markdown, llama_bench, of_markdown, of_sql
from llmviewer.calibrate.readers.llmperf import llmperf
from llmviewer.calibrate.readers.prometheus import is_snapshot, of_snapshot, prometheus
from llmviewer.calibrate.readers.run import BenchmarkRun, Record, Stated, rows
from llmviewer.calibrate.readers.serving import (
    PRINTED,
    printed_results,
    sglang,
    sglang_one_batch,
    vllm_latency,
    vllm_serve,
    vllm_throughput,
)
from llmviewer.core import data, files, parsing
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    import pandas as pd

#: Program -> reader: the run of a record, None for a record of another program.  A new format is one line here.
READERS: dict[str, Callable[[Record], BenchmarkRun | None]] = {
    "vllm bench serve": vllm_serve,
    "vllm bench latency": vllm_latency,
    "vllm bench throughput": vllm_throughput,
    "sglang.bench_serving": sglang,
    "sglang.bench_one_batch": sglang_one_batch,
    "metrics of Prometheus": prometheus,
    "genai-perf and AIPerf": aiperf,
    "inference-perf": inference_perf,
    "guidellm": guidellm,
    "llmperf": llmperf,
    "llama-bench": llama_bench,
}
#: Limits: `--save-detailed` writes the time of every token.
MAX_BYTES, MAX_VALUES = 2**28, 10**7
#: Bytes that decide whether a file can be one of a benchmark.
HEAD_BYTES = 4096
#: Beginning of the output of `calibrate run`, which is JSON as well.
OWN_SCHEMA = b'{"schema":'


@frozen(eq=False)
class BenchmarkTable:
    """Rows of an end-to-end table.  left_out: reason -> runs of the file that it does not have."""

    frame: pd.DataFrame
    left_out: Counter[str]


def is_benchmark(path: Path) -> bool:
    """Whether a file is JSON other than our own, a table of llama-bench, metrics, or what a benchmark printed."""
    head = files.head(path, HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith((b"{", b"[")):
        return not head.replace(b" ", b"").startswith(OWN_SCHEMA)
    first = head.partition(b"\n")[0]
    if is_snapshot(head.decode("utf-8", "replace")):
        return True
    return all(name.encode() in first for name in SIGNS) or any(
        is_markdown(line) or PRINTED in line or SQL in line for line in head.decode("utf-8", "replace").splitlines()
    )


def table(
    path: Path, stated: Stated, check: Callable[[BenchmarkRun], BenchmarkRun] = lambda run: run
) -> BenchmarkTable:
    """The runs of a benchmark file as rows.  Raises UserError if no run can be compared, with the first reason.

    check: run -> the run, or a UserError for one that is left out.
    """
    import pandas as pd

    where = f"'{printable(path)}'"
    found: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for record in _records(path):
        try:
            found += rows(check(_run(record, where)), stated, where)
        except UserError as error:
            left_out[error.marked] += 1
    if not found:
        raise UserError(next(iter(left_out), f"{where} has no runs"))
    return BenchmarkTable(frame=pd.DataFrame(found), left_out=left_out)


def first_run(path: Path) -> BenchmarkRun | None:
    """The first run of a benchmark file as the file states it, None if it has none that can be read."""
    for record in _records(path):
        try:
            return _run(record, f"'{printable(path)}'")
        except UserError:
            continue
    return None


def _run(record: Record, where: str) -> BenchmarkRun:
    for program, reader in READERS.items():
        try:
            run = reader(record)
        except UserError as error:
            raise UserError(f"{where} ({program}): {error.marked}") from error
        if run is not None:
            return run
    raise UserError(f"{where} has the fields of no benchmark that is read: {', '.join(READERS)}")


def _records(path: Path) -> Iterator[Record]:
    """The records of a file: a JSON object, a list of them, one in each line; printed text; or rows of CSV."""
    where = f"'{printable(path)}'"
    text = data.read_text(path, MAX_BYTES, "save the benchmark without details").lstrip()
    content, reason = _json(text)
    if content is not None:
        for record in content:
            if not isinstance(record, dict):
                raise UserError(f"{where} contains a list of something other than records of a benchmark")
            yield from runs_of(record) if isinstance(record.get(RUNS), list) else (record,)
    elif any(map(is_markdown, text.splitlines())):
        yield from of_markdown(text)
    elif SQL in text:
        yield from of_sql(text)
    elif is_snapshot(text):
        yield from of_snapshot(text)
    elif PRINTED in text:
        yield from printed_results(text)
    elif reason:
        raise UserError(f"{where} cannot be read as JSON: {reason}")
    else:
        import csv

        yield from csv.DictReader(text.splitlines())


def _json(text: str) -> tuple[list[Any] | None, str]:
    """The values of a JSON document or of JSON lines; None, and the reason unless the text begins like no JSON."""
    if not text.startswith(("{", "[")):
        return None, ""
    try:
        content = parsing.from_json(text, MAX_VALUES)
    except ValueError as error:
        reason = printable(error, 160)
    else:
        return content if isinstance(content, list) else [content], ""
    try:
        return [parsing.from_json(line, MAX_VALUES) for line in text.splitlines() if line.strip()], ""
    except ValueError:
        return None, reason
