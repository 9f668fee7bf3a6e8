"""Tables of step times of a simulation: time to build, time of an access, and worst error against the price of the very
step.  Prints one row per model; `python benchmarks/simulation_tables.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from llmviewer import api
from llmviewer.analysis.evaluation import evaluate
from llmviewer.core.workload import Group, Step
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.step_times import StepTimes, step_times

#: Model, chip, engine, devices of a tensor-parallel group.
SYSTEMS = (
    ("llama-3.1-8b", "h100-sxm", "vllm", 1),
    ("deepseek-v3", "h200", "sglang", 8),
    ("deepseek-v3.2", "h200", "vllm", 8),
    ("qwen3-next-80b-a3b", "h100-sxm", "vllm", 4),
    ("gpt-oss-120b", "h100-sxm", "vllm", 2),
    ("llama-3.1-70b", "h200", "trtllm", 4),
    ("mamba-2.8b", "a100-80gb-sxm", "vllm", 1),
    ("llama-3.1-8b", "mi300x", "vllm", 1),
)
#: Steps of each kind, and accesses of one timing.
STEPS, ACCESSES = 150, 5000
HEADER = """| system | build, CPU time | decode_s | mixed_s | worst error: decode | chunk | mixed |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Print one row per system."""
    print(HEADER)
    for model, chip, engine, devices in SYSTEMS:
        one = api.configuration(model, chip, engine=engine, tensor_parallel_size=devices)
        start = time.process_time()
        times = step_times(one)
        built = time.process_time() - start
        decode_us = access_us(lambda times=times: times.decode_s(64, 64_000.0))  # type: ignore[misc]
        mixed_us = access_us(lambda times=times: times.mixed_s(64, 64_000.0, 500, 400_000.0, 2))  # type: ignore[misc]
        errors = " | ".join(f"{worst:.2%}" for worst in worst_errors(one, times))
        name = f"{model}, {devices} x {chip}, {engine}"
        print(f"| {name} | {built:.2f} s | {decode_us:.2f} us | {mixed_us:.2f} us | {errors} |", flush=True)


def access_us(access: Callable[[], float]) -> float:
    """Shortest mean time of an access [us]."""
    found = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(ACCESSES):
            access()
        found.append((time.perf_counter() - start) / ACCESSES)
    return min(found) * 1e6


def worst_errors(one: api.Configuration, times: StepTimes) -> list[float]:
    """Largest relative errors of decode steps, chunks alone, and both in one step."""
    draw, capacity, worst = np.random.default_rng(0), cache_capacity(one), [0.0, 0.0, 0.0]
    for _ in range(STEPS):
        sequences, context, prompt, before = random_sizes(one, capacity, draw)
        pairs = prompt * before + prompt * (prompt + 1) / 2
        decoding = Group(batch_size=sequences, new_tokens=1.0, cached_tokens=context, logit_positions=1.0)
        chunk = Group(batch_size=1.0, new_tokens=prompt, cached_tokens=before, logit_positions=1.0)
        found = (
            (times.decode_s(sequences, sequences * context), (decoding,)),
            (times.mixed_s(0, 0.0, prompt, pairs, 1), (chunk,)),
            (times.mixed_s(sequences, sequences * context, prompt, pairs, 1), (decoding, chunk)),
        )
        for at, (seconds, groups) in enumerate(found):
            direct = float(np.max(evaluate(one.model, one.system, Step(groups)).time_s))
            worst[at] = max(worst[at], abs(seconds / direct - 1.0))
    return worst


def random_sizes(
    one: api.Configuration, capacity: CacheCapacity, draw: np.random.Generator
) -> tuple[int, float, int, int]:
    """Sequences, their context, prompt tokens and tokens before them, as the cache of the system holds them."""
    most = min(0.9 * capacity.blocks * capacity.block_tokens, 2e6)
    longest = min(one.model.max_context, 60_000.0)
    sequences = int(min(2.0 ** draw.uniform(0.0, 9.0), capacity.max_sequences))
    context = float(int(min(draw.uniform() ** 3 * longest, most / sequences)))
    prompt = int(min(2.0 ** draw.uniform(0.0, 13.0), capacity.token_budget))
    before = int(draw.uniform() ** 3 * longest) * int(draw.integers(2))
    return sequences, context, prompt, int(min(before, max(most - sequences * context - prompt, 0.0)))


if __name__ == "__main__":
    main()
