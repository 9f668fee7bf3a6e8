"""Rates of campaigns, from which docs/guide/scale.md computes larger ones: python benchmarks/campaign.py.

Points per second of one and of two worker processes with their files written, of one core without Dask, and what the
command and the scheduler do one after the other for each chunk and configuration.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmviewer.planning import campaign as campaigns
from llmviewer.planning import cluster
from llmviewer.planning.campaign import Campaign, sweep_campaign
from llmviewer.planning.data_set import data_set

#: Name -> lists of a sweep: its points have 2 forward passes, or 129.
LOADS = {
    "first tokens": {"batch_size": "1:512", "input_len": "16:32768:+16", "output_len": "1"},
    "answers of 128 tokens": {"batch_size": "1:64", "input_len": "16:16384:+16", "output_len": "128"},
}
RUNS, NO_OPS, CONFIGURATIONS = 2, 2000, 20
ONE = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}


def made(sizes: dict[str, str], chunks: int) -> Campaign:
    """The first chunks of a sweep on one configuration."""
    asked = sweep_campaign([ONE], sizes)[0]
    return Campaign(kind=asked.kind, asked=asked.asked, inputs=asked.inputs, chunks=asked.chunks[:chunks])


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest time of RUNS runs [s]."""
    found = []
    for _ in range(RUNS):
        started = clock()
        function()
        found.append(clock() - started)
    return min(found)


def alone(asked: Campaign, folder: Path) -> None:
    """Print the rate of one core, by its CPU time, and the bytes of a point."""
    target = data_set(str(folder), asked.manifest())
    target.begin(asked.manifest())
    chunk = asked.chunks[0]
    campaigns.compute(asked.kind, 0, chunk.words, asked.inputs, target)  # imports and the first evaluation
    took = seconds(lambda: campaigns.compute(asked.kind, 0, chunk.words, asked.inputs, target), time.process_time)
    size = sum(path.stat().st_size for path in folder.glob("*/*/*.parquet"))
    print(f"  one core without Dask, CPU time    {chunk.rows / took:10,.0f} points/s, {took:.2f} s per chunk")
    print(f"  file of {chunk.rows:,} points   {size / chunk.rows:10.0f} bytes per point")


def together(asked: Campaign, client: Any, folder: Path) -> None:
    """Print the rates of the workers, which compute the chunks and write their files: by the clock, and by CPU time."""
    target = data_set(str(folder), asked.manifest())
    target.begin(asked.manifest())
    tasks = [
        (f"{folder.name}-{i}", (asked.kind, i, chunk.words, asked.inputs, target))
        for i, chunk in enumerate(asked.chunks)
    ]
    started, busy = time.perf_counter(), sum(client.run(time.process_time).values())
    assert len(list(cluster.answers(client, campaigns.compute, tasks))) == len(tasks)
    took, busy = time.perf_counter() - started, sum(client.run(time.process_time).values()) - busy
    workers = len(client.nthreads())
    rates = f"{len(asked) / took:10,.0f} points/s together, {len(asked) / busy:,.0f} per CPU second"
    print(f"  {workers} workers, {len(tasks)} chunks              {rates}, {took:.1f} s", flush=True)


def serial(client: Any) -> None:
    """Print what does not become shorter with more workers."""
    tasks = [(f"none-{i}", (i,)) for i in range(NO_OPS)]
    assert len(list(cluster.answers(client, abs, tasks[:100]))) == 100
    started, busy = time.perf_counter(), time.process_time()
    assert len(list(cluster.answers(client, abs, tasks))) == NO_OPS
    took, busy = time.perf_counter() - started, time.process_time() - busy
    each = f"{took / NO_OPS * 1e3:8.2f} ms, {busy / NO_OPS * 1e3:.2f} ms of CPU"
    print(f"a chunk through command and scheduler  {each}")
    sizes = LOADS["first tokens"]
    many = [{**ONE, "gpu_memory_utilization": 0.5 + 0.01 * i} for i in range(CONFIGURATIONS)]
    started = time.perf_counter()
    sweep_campaign(many, sizes)
    print(f"a configuration checked beforehand     {(time.perf_counter() - started) / CONFIGURATIONS * 1e3:8.1f} ms")


def main() -> None:
    """Print all rates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for load, sizes in LOADS.items():
            print(load)
            alone(made(sizes, 1), folder / f"{load} alone")
            for workers in (1, 2):
                started = time.perf_counter()
                with cluster.connected(f"local:{workers}") as client:
                    print(f"  start of {workers} workers             {time.perf_counter() - started:10.1f} s")
                    together(made(sizes, workers), client, folder / f"{load} first {workers}")
                    for run in range(RUNS):
                        together(made(sizes, 2 * workers), client, folder / f"{load} {workers} {run}")
        cluster.AHEAD = 512  # as many tasks at once as 256 workers would have
        with cluster.connected("local:2") as client:
            serial(client)


if __name__ == "__main__":
    main()
