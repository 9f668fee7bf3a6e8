"""Speed at the doors that users come through: a further call from Python, a sweep to a file, a frame, JSON.

Rows for `speed.py`.  Figures of other tools are those that they gave on one machine, where this package took
5 ms for a further call: LLM-Viewer 0.066 ms per point and 15,249 points/s, llm-analysis 0.21 ms and 4,684 points/s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import llmviewer as lv

GRID = ["--batch-size", "1:512", "--input-len", "4:2048:+4"]
SWEPT = 512 * 512
SWEEP = ["sweep", "llama-2-7b", "--hardware", "a6000", *GRID, "--output-len", "2"]
#: Format and efficiency of a sweep -> goal [s].
SWEEPS = {("parquet", "ideal"): 2.0, ("csv", "ideal"): 2.5, ("csv", "calibrated"): 3.5}
#: Efficiency -> goal of a further call [ms].
CALLS = {"ideal": 0.4, "calibrated": 1.0}
FRAME_POINTS = 1_000_000
LOAD = "--request-rate 50 --input-len 2000 --output-len 300 --ttft p99:1s --tpot p99:50ms"
FIVE = "h100,l40s,a100-80gb-sxm,h200,b200"
#: Question over many chips or models -> goal of its time on the clock [s].
QUESTIONS = {
    "compare llama-3.1-8b --hardware all": 1.0,
    "fit --hardware rtx-4090": 3.0,
    f"size llama-3.1-8b --hardware {FIVE} {LOAD}": 10.0,
    f"size llama-3.1-8b --hardware all {LOAD}": 30.0,
}


def rows() -> list[tuple[str, str, str]]:
    """Rows of calls, JSON, sweeps to files, forward passes, frames and questions over all chips."""
    return [*calls(), *files(), passes(), frame(), *questions()]


def _median(call: Callable[[int], object], repeats: int) -> float:
    """Median processor time of a call with a number that changes [s]."""
    call(0)
    times = []
    for number in range(repeats):
        start = time.process_time()
        call(number)
        times.append(time.process_time() - start)
    return sorted(times)[repeats // 2]


def calls() -> list[tuple[str, str, str]]:
    """Time of `lv.analyze` with new numbers on a known configuration, and of the JSON of an answer."""
    found = []
    for efficiency, goal in CALLS.items():
        sizes = {"output_len": 128, "efficiency": efficiency}
        seconds = _median(
            lambda n, sizes=sizes: lv.analyze("llama-2-7b", "a6000", batch_size=1 + n % 8, input_len=64 + n, **sizes),
            300,
        )
        found.append((f"a further `lv.analyze`, {efficiency}", f"{seconds * 1e3:.2f} ms", f"≤ {goal} ms"))
    answer = lv.analyze("llama-2-7b", "a6000")
    found.append(("JSON of one answer", f"{_median(lambda _: answer.to_json(), 50) * 1e3:.1f} ms", "≤ 2 ms"))
    answers = [lv.analyze("llama-2-7b", "a6000", input_len=64 + n) for n in range(51)]
    first = _median(lambda n: answers[n].to_json(), 50)
    found.append(("JSON of one answer, first call", f"{first * 1e3:.1f} ms", ""))
    return found


def files() -> list[tuple[str, str, str]]:
    """Processor time of sweeps of 262,144 points to files, start-up included."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for (form, efficiency), goal in SWEEPS.items():
            seconds, _ = _process(
                [*SWEEP, "--efficiency", efficiency, "--format", form, "-o", f"{folder}/sweep.{form}"]
            )
            found.append((f"`sweep` of {SWEPT:,} points to {form}, {efficiency}", f"{seconds:.1f} s", f"≤ {goal} s"))
    return found


def questions() -> list[tuple[str, str, str]]:
    """Processor time of questions over many chips or models, and their time on the clock, start-up included."""
    found = []
    for line, goal in QUESTIONS.items():
        busy, clock = _process(line.split())
        found.append((f"`{line}`", f"{busy:.1f} s of processors, {clock:.1f} s on the clock", f"≤ {goal:g} s"))
    return found


def _process(words: list[str]) -> tuple[float, float]:
    """Processor time of a command with its child processes, and its time on the clock [s]."""
    program, before, start = Path(sys.executable).parent / "llmviewer", os.times(), time.perf_counter()
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    clock, after = time.perf_counter() - start, os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system, clock


def passes() -> tuple[str, str, str]:
    """Forward passes per second of a sweep with 128 output tokens, TPOT exact over all steps."""
    sweep = lv.sweep(
        "llama-2-7b", "a6000", batch_size=range(1, 65), input_len=range(8, 521, 8), output_len=128, efficiency="ideal"
    )
    start = time.process_time()
    for _ in sweep.chunks():
        pass
    rate = len(sweep) * 129 / (time.process_time() - start)
    return "sweep with 128 output tokens", f"{rate / 1e6:.1f} million forward passes/s", "≥ 5 million/s"


def frame() -> tuple[str, str, str]:
    """Time of a frame of a million points beyond pricing them."""
    side = int(FRAME_POINTS**0.5)
    lengths = range(8, 8 * side + 8, 8)
    sizes = {"batch_size": range(1, side + 1), "input_len": lengths, "output_len": 1, "efficiency": "ideal"}
    sweep = lv.sweep("llama-2-7b", "a6000", **sizes)
    start = time.process_time()
    for _ in sweep.chunks():
        pass
    priced = time.process_time()
    sweep.to_frame()
    beyond = (time.process_time() - priced) - (priced - start)
    return f"frame of {side * side:,} points beyond pricing them", f"{beyond:.2f} s", "≤ 1 s"
