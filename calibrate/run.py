"""Measure the cases of a plan row by row; a rerun resumes where the last run ended."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from llmviewer.calibrate import environment, plan, record, sizes
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.sizes import RunSize
from llmviewer.calibrate.timer import Limits, PreparedKernel, Samples, Stopwatch, TooLongError, measure
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen

#: Time over which the mean power of a row is taken, where it is asked for [s].
POWER_S = 0.5
#: Significant digits of a stored time.
SIGNIFICANT_DIGITS = 5
#: FLOP of one call from which sustained calls may exceed the power limit of a card.
SUSTAINED_FLOPS = 2e10


@frozen
class Progress:
    """Progress of a run: cases done and in total, estimated seconds left, and the current table.

    The first one has none done; least_s is then the time of the samples alone.  missing: table -> cases left.
    """

    done: int
    total: int
    left_s: float
    now: str
    least_s: float = 0.0
    missing: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Summary:
    """Result of a run, in rows.

    measured, unstable: by table.  left_out: by table, for lack of time.  skipped: by reason.  kept: from earlier runs.
    """

    path: Path
    environment: dict[str, Any]
    kept: int = 0
    repaired: bool = False
    seconds: float = 0.0
    measured: Counter[str] = field(default_factory=Counter)
    unstable: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def run(
    folder: str | Path,
    device: str | None = None,
    size: RunSize | str = "default",
    on_progress: Callable[[Progress], None] = lambda progress: None,
    *,
    cases: Sequence[KernelCase] | None = None,
) -> Summary:
    """Measure into DIR/samples.jsonl.  device: cuda, cpu, or None for CUDA if available.  cases: None for all of the
    size."""
    started_at = time.monotonic()
    kind = environment.choose_device(device)
    chosen = sizes.size_named(kind, size) if isinstance(size, str) else size
    with closing(record.Recorder(record.prepare_folder(folder))) as recorder:
        return _run(recorder, kind, chosen, started_at, on_progress, cases)


def _run(
    recorder: record.Recorder,
    kind: str,
    chosen: RunSize,
    started_at: float,
    on_progress: Callable[[Progress], None],
    cases: Sequence[KernelCase] | None,
) -> Summary:
    """Measure what the file lacks."""
    facts = environment.describe(kind)
    recorder.start(facts)
    summary = Summary(path=recorder.path, environment=facts, repaired=recorder.repaired)
    common_columns = {"device": facts["device"], "source": "llmviewer", "engine": f"torch {facts['torch']}"}
    planned = plan.cases(chosen, int(facts.get("gpus", 1))) if cases is None else cases
    missing = lacking(planned, common_columns, recorder)
    summary.kept = len(planned) - len(missing)
    left = Counter(case.table for case, _ in missing)
    least_s = sum(_least_s(case, chosen) for case, _ in missing)
    first = Progress(done=0, total=len(missing), left_s=chosen.budget_s, now="", least_s=least_s, missing=dict(left))
    on_progress(first)
    bench = Bench(kind, facts["cache_bytes"], chosen)
    for done, (row, left_s) in enumerate(bench.rows(missing, started_at, summary)):
        if row is not None:
            recorder.append(row)
            bench.check()
        now = missing[done][0].table
        left[now] -= row is not None
        on_progress(Progress(done=done + 1, total=len(missing), left_s=left_s, now=now, missing=dict(+left)))
    summary.seconds = time.monotonic() - started_at
    return summary


def _least_s(case: KernelCase, size: RunSize) -> float:
    """Shortest time in which a case can be measured: that of its samples."""
    settling = size.settle_s if case.flops >= SUSTAINED_FLOPS else 0.0
    return size.warmup_s + settling + size.samples * size.sample_s + size.power_s


def lacking(
    planned: Sequence[KernelCase], common_columns: Mapping[str, str], recorder: record.Recorder
) -> list[tuple[KernelCase, dict[str, Any]]]:
    """The cases that a file lacks, with the columns of their rows before they are measured."""
    rows = [(case, {"table": case.table, **common_columns, **case.columns}) for case in planned]
    return [(case, row) for case, row in rows if record.row_key(row) not in recorder.done]


class Bench:
    """Measurement setup: a device, its stopwatch and its buffers."""

    def __init__(self, kind: str, cache_bytes: float, size: RunSize) -> None:
        from llmviewer.calibrate.buffers import Buffers
        from llmviewer.calibrate.stopwatch import stopwatch

        self.size = size
        self.buffers = Buffers(kind, cache_bytes)
        self.stopwatch: Stopwatch = stopwatch(kind, cache_bytes)

    def rows(
        self, wanted: list[tuple[KernelCase, dict[str, Any]]], started_at: float, summary: Summary
    ) -> Iterator[tuple[dict[str, Any] | None, float]]:
        """Yield each row with samples or a skip reason (None if no time was left), and the estimated seconds left."""
        deadline = started_at + self.size.budget_s
        tables = [(table, list(group)) for table, group in groupby(wanted, key=lambda pair: pair[0].table)]
        total, started, done = len(wanted), time.monotonic(), 0
        for i, (table, group) in enumerate(tables):
            share = plan.SHARES[table] / sum(plan.SHARES[later] for later, _ in tables[i:])
            table_deadline = time.monotonic() + share * (deadline - time.monotonic())
            for case, row in group:
                found = self._row(case, row, table_deadline - time.monotonic())
                _count(summary, table, found)
                done += 1
                now = time.monotonic()
                yield found, min(deadline - now, (now - started) / done * (total - done))

    def _row(self, case: KernelCase, row: dict[str, Any], left_s: float) -> dict[str, Any] | None:
        import torch

        if left_s <= 0.0:
            return None
        failure = ""
        try:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return row | self._measured(case, left_s)
        except TooLongError:
            return None
        except Exception as error:  # a kernel that fails is skipped; the run continues
            failure = skip_reason(error)
        finally:
            self.buffers.release(everything=bool(failure))  # after the exception, which references the kernel's tensors
        return row | {"skipped": failure}

    def check(self) -> None:
        """Raise UserError if the device no longer responds because a kernel broke its context."""
        import torch

        if self.buffers.kind == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                message = f"the device failed ({skip_reason(error)}); run again to resume after that row"
                raise UserError(message) from error

    def _measured(self, case: KernelCase, left_s: float) -> dict[str, Any]:
        from llmviewer.calibrate.kernels import KERNELS

        kernel: PreparedKernel = KERNELS[case.kernel](case.columns, self.buffers)
        limits = Limits(
            samples=self.size.samples,
            max_samples=2 * self.size.samples,
            sample_s=self.size.sample_s,
            warmup_s=self.size.warmup_s,
            settle_s=self.size.settle_s if case.flops >= SUSTAINED_FLOPS else 0.0,
            max_s=left_s,
            power_s=self.size.power_s,
        )
        return result_columns(measure(kernel, self.stopwatch, limits), kernel.rotated_bytes)


def result_columns(timing: Samples, rotated_bytes: float) -> dict[str, Any]:
    """RESULT_FIELDS of a row that was measured."""
    return {
        "latency_us": _rounded(timing.latency_us),
        "samples_us": [_rounded(sample) for sample in timing.samples_us],
        "spread": round(timing.spread, 4),
        "stable": timing.stable,
        "clock_mhz": timing.reading.clock_mhz,
        "power_w": timing.reading.power_w,
        "power_s": round(timing.reading.power_s, 3),
        "calls": timing.calls,
        "timed": timing.timed,
        "settled_s": round(timing.settled_s, 3),
        "rotated_bytes": None if math.isinf(rotated_bytes) else rotated_bytes,
    }


def _count(summary: Summary, table: str, row: dict[str, Any] | None) -> None:
    if row is None:
        summary.left_out[table] += 1
    elif "skipped" in row:
        summary.skipped[row["skipped"]] += 1
    else:
        summary.measured[table] += 1
        summary.unstable[table] += not row["stable"]


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def skip_reason(error: Exception) -> str:
    """Reason in one line why a kernel did not run."""
    message = " ".join(str(error).split()) or type(error).__name__
    error_name = type(error).__name__
    if error_name == "OutOfMemoryError" or "can't allocate memory" in message:
        return "out of memory"
    return printable(
        message if error_name in ("UnsupportedError", "TooLargeError") else f"{error_name}: {message}", 200
    )
