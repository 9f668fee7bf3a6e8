"""How fast the tool answers.  Run by `make bench`; prints docs/evidence/speed.md.

A point is one prefill and one decode step of Llama-2-7b with flash attention, including memory, with model and chip
loaded; once ideal and once calibrated.  The cold process uses calibrated times, the default.
"""

from __future__ import annotations

import os
import platform

CHILDREN = dict(os.environ)  # environment of cold processes: the user's own
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # in process: as on the command line

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import doors
import numpy as np

from llmviewer import api
from llmviewer.analysis import analysis
from llmviewer.core.workload import Request
from llmviewer.result import sweep

POINTS = 1_000_000
REPORT = ["report", "llama-3.1-8b", "--hardware", "h100-sxm,a100-80gb-sxm", "--quantization", "none,w4a16"]
ROOFLINE = ["plot", "roofline", "llama-2-7b", "--hardware", "a6000"]
MATPLOTLIB = "matplotlib.figure, matplotlib.backends.backend_agg"
ANALYZE = ["analyze", "llama-2-7b", "--hardware", "a6000", "--format", "json"]


HEADER = """# Speed

Printed by `make bench` (`benchmarks/speed.py`) on {cores} cores of an {cpu}, Python {python}, numpy {numpy}.
Twenty million additions in a Python loop take {loop:.1f} s of processor time here: the machine decides the absolute
figures, and ratios to that loop can be compared.

A *point* is one prefill and one decode step of Llama-2-7b with flash attention, including memory, with model and chip
already loaded. A *generation* prices the prefill and all 511 decode steps. The sweep runs on one core. The cold process
uses calibrated times, the default of `analyze`, and is compared with the imports that it needs at least, in the same
environment, with bytecode compiled at installation.

| what | measured | goal |
|---|---|---|"""


def _cpu() -> str:
    """Name of the processor, from Linux if available."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    """Print every figure with its goal."""
    print(
        HEADER.format(
            cores=os.cpu_count(), cpu=_cpu(), python=platform.python_version(), numpy=np.__version__, loop=loop_s()
        )
    )
    for what, measured, goal in (*cold_process(), *in_process(), *doors.rows()):
        print(f"| {what} | {measured} | {goal} |")


def loop_s() -> float:
    """Processor time of 20 million additions [s], a measure of the machine."""
    start, total = time.process_time(), 0
    for number in range(20_000_000):
        total += number
    return time.process_time() - start


def cold_process() -> list[tuple[str, str, str]]:
    """CPU time and memory of a process that answers one question, and CPU time of its minimal imports."""
    program = str(Path(sys.executable).parent / "llmviewer")
    imports, _ = cpu_of([sys.executable, "-c", "import numpy, yaml, typer"])
    seconds, memory = cpu_of([program, *ANALYZE])
    return [
        ("`import numpy, yaml, typer`, CPU time", f"{imports * 1e3:.0f} ms", ""),
        ("`llmviewer analyze ... --format json`, CPU time", f"{seconds * 1e3:.0f} ms", ""),
        ("ratio of these two", f"{seconds / imports:.2f}", "≤ 1.25"),
        ("peak memory of this process", f"{memory / 2**20:.0f} MiB", "≤ 64 MiB"),
        *picture(program),
    ]


def picture(program: str) -> list[tuple[str, str, str]]:
    """CPU time of processes that draw a roofline and write a report, and of the imports that plots need."""
    imports, _ = cpu_of([sys.executable, "-c", f"import numpy, yaml, typer, pandas, {MATPLOTLIB}"])
    with tempfile.TemporaryDirectory() as folder:
        seconds, _ = cpu_of([program, *ROOFLINE, "-o", f"{folder}/roofline.png"])
        page, _ = cpu_of([program, *REPORT, "-o", f"{folder}/report.html"])
        size = Path(f"{folder}/report.html").stat().st_size
    return [
        ("`llmviewer plot roofline`, CPU time", f"{seconds:.2f} s", "≤ 1.5 s"),
        ("imports within it (pandas, matplotlib and others)", f"{imports:.2f} s", ""),
        ("`llmviewer report` of four configurations, CPU time", f"{page:.2f} s", "≤ 3 s"),
        ("size of the report", f"{size / 1e6:.1f} MB", "< 8 MB"),
    ]


def cpu_of(command: list[str], repeats: int = 15) -> tuple[float, float]:
    """Median user + system time [s] of a command, and its peak memory [byte]."""
    times = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=CHILDREN)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    peak = subprocess.run(
        [sys.executable, "-c", PEAK_OF, *command], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    return sorted(times)[repeats // 2], float(peak) * 1024


PEAK_OF = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)


def in_process() -> list[tuple[str, str, str]]:
    """Rows of one point, one generation and one sweep, ideal and calibrated."""
    ideal = figures(api.configuration("llama-2-7b", "a6000", efficiency="ideal"), "", GOALS)
    calibrated = api.configuration("llama-2-7b", "a6000", efficiency="calibrated")
    return [*ideal, *figures(calibrated, ", calibrated", ("", "", ""))]


#: Goals for a point, a generation and a sweep with ideal times.
GOALS = ("≤ 0.5 ms", "≤ 0.6 ms", "≥ 2 million points/s")


def figures(configuration: api.Configuration, suffix: str, goals: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    """Rows of one point, one generation and one sweep, and the memory of the process after them."""
    model, system = configuration.model, configuration.system

    def answer(prompt: float, output: float) -> Callable[[], object]:
        request = Request(batch_size=1.0, input_len=prompt, output_len=output)
        return lambda: _used(analysis.analyze(model, system, request))

    point, generation = median_time(answer(512.0, 1.0)), median_time(answer(512.0, 512.0))
    rate = sweep_rate(configuration)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        (f"one point{suffix}", f"{point * 1e3:.2f} ms", goals[0]),
        (f"one generation, 512 + 512 tokens, exact over all steps{suffix}", f"{generation * 1e3:.2f} ms", goals[1]),
        (f"sweep of {POINTS:,} points{suffix}", f"{rate / 1e6:.1f} million points/s", goals[2]),
        (f"memory of the process after the sweep{suffix}", f"{peak:.0f} MiB", "bounded"),
    ]


def _used(done: analysis.Analysis) -> tuple[object, ...]:
    """Evaluate the properties that every point needs."""
    return done.ttft_s, done.tpot_s, done.schedule.decode(done.passes.time_s), done.memory.total_bytes, done.memory.fits


def median_time(call: Callable[[], object], repeats: int = 400) -> float:
    """Median time of a call [s]."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def sweep_rate(configuration: api.Configuration) -> float:
    """Points per second over a grid of batch sizes and lengths."""
    side = int(POINTS**0.5)
    grid = sweep.Grid(
        batch_sizes=np.arange(1.0, side + 1), input_lens=np.arange(8.0, 8.0 * side + 8, 8), output_lens=np.ones(1)
    )
    start = time.perf_counter()
    for request in grid.chunks():
        _used(analysis.analyze(configuration.model, configuration.system, request))
    return len(grid) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
