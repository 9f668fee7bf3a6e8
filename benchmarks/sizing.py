"""Sizing: time of both floors, and the error of the first against the second.  `python benchmarks/sizing.py`."""

from __future__ import annotations

import time
from dataclasses import replace

from llmviewer.planning.call import Watch, chips_of, screens_of, tried_on
from llmviewer.planning.options import question
from llmviewer.planning.screen import Candidate
from llmviewer.simulation.call import simulate

#: Model, chips, load and limits.
MODEL, CHIPS = "llama-3.1-8b", "h100,h200,b200,mi300x,l40s,a100-80gb-sxm,a100-80gb-pcie,a10,l4,rtx-4090"
LOAD = {"request_rate": 50, "input_len": 2000, "output_len": 300, "ttft": "p99:1s", "tpot": "p99:50ms"}
HEADER = """| floor | points | structures | time |
|---|---|---|---|"""
ERRORS = """
| configuration | TTFT mean | p99 | TPOT mean | p99 |
|---|---|---|---|---|"""


def main() -> None:
    """Print the time of each floor, and steady state over simulation of the best point of each chip."""
    asked = question(MODEL, chips_of(CHIPS), LOAD)
    screens_of(replace(asked, hardware=asked.hardware[:1]), Watch())  # files are read once
    start = time.perf_counter()
    screens = screens_of(asked, Watch())
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    tried = tried_on(asked, screens, Watch())
    second_s = time.perf_counter() - start
    points, structures = sum(one.points for one in screens), sum(len(one.structures) for one in screens)
    print(HEADER)
    print(f"| steady state | {points:,} | {structures} | {first_s:.1f} s |")
    print(f"| simulation | {sum(one.runs for one in tried)} | | {second_s:.1f} s |")
    print(ERRORS)
    for one in screens:
        point = next((point for point in one.ordered if isinstance(point, Candidate)), None)
        if point is not None:
            print(_compared(one.hardware, point))


def _compared(hardware: str, point: Candidate) -> str:
    load = {**LOAD, "request_rate": LOAD["request_rate"] / point.replicas}  # type: ignore[operator]
    found = simulate(MODEL, hardware, **point.words, **load).latencies()
    pairs = (
        (point.mean_ttft_s, found["ttft_s"]["mean"]),
        (point.ttft_s, found["ttft_s"]["p99"]),
        (point.mean_tpot_s, found["tpot_s"]["mean"]),
        (point.tpot_s, found["tpot_s"]["p99"]),
    )
    cells = " | ".join(f"{steady / (simulated or 1.0) - 1.0:+.0%}" for steady, simulated in pairs)
    return f"| {point.replicas} x {hardware} {point.words} | {cells} |"


if __name__ == "__main__":
    main()
