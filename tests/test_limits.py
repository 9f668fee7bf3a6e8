"""The largest batch and context that fit, found in few evaluations, are those that a search one by one finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.analysis import limits
from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.limits import Search, search
from llmviewer.core.counts import Array
from llmviewer.core.workload import Request
from llmviewer.result.result import Result
from tests.answers import analyze
from tests.representative import REPRESENTATIVE

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"attention": "eager", "input_len": 3000, "batch_size": 3},
    {"max_num_batched_tokens": 1000, "batch_size": 7, "output_len": 1},
    {"kv_block_size": "16", "prefix_cache": "0.7", "kv_evict": "0.5", "batch_size": 5},
    {"kv_cache_free_gpu_memory_fraction": "0.8", "kv_reserve": "4096"},
    {"data_parallel_size": 3, "batch_size": 20},
    {"offload": "weights=0.5", "input_len": 10},
    {"batching": "continuous", "batch_size": 64},
    {"branches": "skeleton,outline=36,points=6", "output_len": 300, "max_num_batched_tokens": 700},
)


def answered(searching: Search, room: Any) -> tuple[float, int]:
    """The answer of a search, and the rounds that it took.  room: candidates -> room."""
    rounds, candidates = 0, next(searching)
    try:
        while True:
            rounds += 1
            candidates = searching.send(room(candidates))
    except StopIteration as found:
        return float(found.value), rounds


@given(end=st.integers(0, 2**30), part=st.floats(0.1, 0.9), slope=st.floats(1e-3, 1e9), guess=st.floats(0.0, 2.0**33))
def test_room_that_falls_evenly_ends_after_three_rounds_at_most(
    end: int, part: float, slope: float, guess: float
) -> None:
    """Room that lasts for n + p steps is enough for n, found in one round from a good guess and in two from none."""

    def room(steps: Array) -> Array:
        return slope * (end + part - steps)

    found, rounds = answered(search(2.0**32, guess=guess), room)
    assert found == end and rounds <= 3
    assert answered(search(2.0**32, guess=end + 3.0), room) == (end, 1)
    found, rounds = answered(search(2.0**32), room)
    assert found == end and rounds <= 2


@given(data=st.data(), guess=st.integers(0, 400))
def test_the_last_of_several_rises_with_room_counts(data: st.DataObject, guess: int) -> None:
    """Need rises by 1 to 9 per step from each start, where it falls back; the answer is by brute force."""
    starts = np.array([1, *sorted(data.draw(st.sets(st.integers(2, 300), max_size=5)))], dtype=np.float64)
    need = np.cumsum(np.array(data.draw(st.lists(st.integers(1, 9), min_size=400, max_size=400)), dtype=np.float64))
    for start in starts[1:]:
        need[int(start) - 1 :] -= data.draw(st.integers(0, 500))
    budget = float(data.draw(st.integers(-100, 2500)))
    begun = starts[need[starts.astype(int) - 1] <= budget]
    expected = 0.0
    if begun.size:
        end = starts[starts > begun[-1]].min(initial=401.0)
        segment = np.arange(begun[-1], end)
        expected = segment[need[segment.astype(int) - 1] <= budget][-1]
    found, _ = answered(search(400.0, starts=starts, guess=float(guess)), lambda x: budget - need[x.astype(int) - 1])
    assert found == expected


def fitting(result: Result, field: str, sizes: Array) -> Array:
    """The sizes with which the request of a result fits."""
    system, request = result.analysis.system, result.analysis.request
    one = {
        name: np.full(len(sizes), np.max(getattr(request, name))) for name in ("batch_size", "input_len", "output_len")
    }
    memory = memory_of(result.analysis.model, system, Request(**one | {field: sizes}), result.token_budget)
    return sizes[np.asarray(memory.fits) > 0.0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("model", REPRESENTATIVE)
def test_nothing_larger_than_the_limits_fits(model: str, options: dict[str, Any]) -> None:
    """All of the next 300 sizes and 200 up to 2^32, and the limit itself."""
    result = analyze(model, "h200", **options)
    memory = result.memory
    output = result.analysis.system.batching.padded(result.analysis.request).output_len
    for field, limit in (
        ("batch_size", memory["max_batch_size"]),
        ("input_len", memory["max_context_len"] - float(np.max(output)) if memory["max_context_len"] else 0.0),
    ):
        larger = np.unique(np.round(np.concatenate((np.arange(1.0, 301.0), np.geomspace(301.0, 2.0**32, 200)))))
        larger = (limit + larger)[limit + larger <= limits.SEARCH_LIMIT]  # where nothing grows, the search ends there
        assert not larger.size or fitting(result, field, larger).size == 0
        assert not limit or fitting(result, field, np.array([limit])).size == 1


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-3-4b", "deepseek-v2-lite"])
def test_limits_do_not_depend_on_what_is_known_of_the_request(model: str, options: dict[str, Any]) -> None:
    """The memory of the request only makes the first guess; that of a hundredth of it guesses far too much."""
    result = analyze(model, "h200", **options)
    analysis = result.analysis
    request = Request(
        **{name: float(np.max(getattr(analysis.request, name))) for name in ("batch_size", "input_len", "output_len")}
    )
    memory = analysis.memory
    wrong = replace(
        memory, kv_cache_bytes=memory.kv_cache_bytes / 100.0, activations_bytes=memory.activations_bytes / 100.0
    )
    found = [
        limits.largest_sizes(analysis.model, analysis.system, request, result.token_budget, known)
        for known in (None, memory, wrong)
    ]
    assert found[0] == found[1] == found[2]
