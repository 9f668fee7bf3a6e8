"""Measure what a plan names, row by row; a rerun goes on where the last one ended."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from llmviewer.calibrate import environment, plan, record, sizes
from llmviewer.calibrate.plan import KernelCase
from llmviewer.calibrate.sizes import RunSize
from llmviewer.calibrate.timer import Limits, Stopwatch, TooLongError, Work, measure
from llmviewer.core.errors import UserError, shown

#: Figures of a sample that are kept.
DIGITS = 5
#: A call of so much work, and those like it one after another, may draw more power than a card keeps up.
LASTING_FLOPS = 2e10


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """cases done of all; seconds until the end, as far as can be told; what is measured now."""

    done: int
    total: int
    left_s: float
    now: str


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a run has done.  measured, unstable: rows by table; skipped: by reason; kept: rows that were there."""

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
    seen: Callable[[Progress], None] = lambda progress: None,
) -> Summary:
    """Measure into DIR/samples.jsonl.  device: cuda, cpu, or None for CUDA where present."""
    begun = time.monotonic()
    kind = environment.chosen(device)
    chosen = sizes.named(kind, size) if isinstance(size, str) else size
    recorder = record.Recorder(record.prepare(folder))
    facts = environment.describe(kind)
    recorder.start(facts)
    summary = Summary(path=recorder.path, environment=facts, repaired=recorder.repaired)
    common = {"device": facts["device"], "source": "llmviewer", "engine": f"torch {facts['torch']}"}
    wanted = [(case, _row(case, common)) for case in plan.cases(chosen, int(facts.get("gpus", 1)))]
    missing = [(case, row) for case, row in wanted if record.key(row) not in recorder.done]
    summary.kept = len(wanted) - len(missing)
    bench = Bench(kind, facts["cache_bytes"], chosen)
    for done, (row, left_s) in enumerate(bench.rows(missing, begun, summary)):
        if row is not None:
            recorder.append(row)
            bench.check()
        seen(Progress(done=done + 1, total=len(missing), left_s=left_s, now=missing[done][0].table))
    summary.seconds = time.monotonic() - begun
    return summary


def _row(case: KernelCase, common: dict[str, str]) -> dict[str, Any]:
    return {"table": case.table, **common, **case.columns}


class Bench:
    """A device, its clock and its buffers."""

    def __init__(self, kind: str, cache_bytes: float, size: RunSize) -> None:
        from llmviewer.calibrate.buffers import Buffers
        from llmviewer.calibrate.stopwatch import stopwatch

        self.size = size
        self.buffers = Buffers(kind, cache_bytes)
        self.stopwatch: Stopwatch = stopwatch(kind, cache_bytes)

    def rows(
        self, wanted: list[tuple[KernelCase, dict[str, Any]]], begun: float, summary: Summary
    ) -> Iterator[tuple[dict[str, Any] | None, float]]:
        """Each row with its samples or why there are none (None where no time was left), and the seconds left."""
        ends = begun + self.size.budget_s
        tables = [(table, list(group)) for table, group in groupby(wanted, key=lambda pair: pair[0].table)]
        todo, started, done = len(wanted), time.monotonic(), 0
        for i, (table, group) in enumerate(tables):
            share = plan.SHARES[table] / sum(plan.SHARES[later] for later, _ in tables[i:])
            until = time.monotonic() + share * (ends - time.monotonic())
            for case, row in group:
                found = self._row(case, row, until - time.monotonic())
                _count(summary, table, found)
                done += 1
                now = time.monotonic()
                yield found, min(ends - now, (now - started) / done * (todo - done))

    def _row(self, case: KernelCase, row: dict[str, Any], left_s: float) -> dict[str, Any] | None:
        import torch

        if left_s <= 0.0:
            return None
        why = ""
        try:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return row | self._measured(case, left_s)
        except TooLongError:
            return None
        except Exception as error:  # whatever a kernel raises, the next one is measured
            why = reason(error)
        finally:
            self.buffers.release(everything=bool(why))  # after the error, which holds the kernel's tensors
        return row | {"skipped": why}

    def check(self) -> None:
        """Raise where the device answers nothing any more: a kernel has harmed its context."""
        import torch

        if self.buffers.kind == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                why = f"the device has failed ({reason(error)}); run again to go on behind that row"
                raise UserError(why) from error

    def _measured(self, case: KernelCase, left_s: float) -> dict[str, Any]:
        from llmviewer.calibrate.kernels import KERNELS

        work: Work = KERNELS[case.kernel](case.columns, self.buffers)
        limits = Limits(
            samples=self.size.samples,
            most_samples=2 * self.size.samples,
            sample_s=self.size.sample_s,
            warmup_s=self.size.warmup_s,
            settle_s=self.size.settle_s if case.flops >= LASTING_FLOPS else 0.0,
            most_s=left_s,
        )
        timing = measure(work, self.stopwatch, limits)
        return {
            "latency_us": _figures(timing.latency_us),
            "samples_us": [_figures(sample) for sample in timing.samples_us],
            "spread": round(timing.spread, 4),
            "stable": timing.stable,
            "clock_mhz": timing.reading.clock_mhz,
            "power_w": timing.reading.power_w,
            "calls": timing.calls,
            "timed": timing.timed,
            "settled_s": round(timing.settled_s, 3),
            "rotated_bytes": None if math.isinf(work.rotated_bytes) else work.rotated_bytes,
        }


def _count(summary: Summary, table: str, row: dict[str, Any] | None) -> None:
    if row is None:
        summary.left_out[table] += 1
    elif "skipped" in row:
        summary.skipped[row["skipped"]] += 1
    else:
        summary.measured[table] += 1
        summary.unstable[table] += not row["stable"]


def _figures(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def reason(error: Exception) -> str:
    """Why a kernel did not run, in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    named = type(error).__name__
    if named == "OutOfMemoryError" or "can't allocate memory" in said:
        return "out of memory"
    return shown(said if named in ("UnsupportedError", "TooLargeError") else f"{named}: {said}", 200)
