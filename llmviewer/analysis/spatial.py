"""Spatial systems: weights and KV cache stay in on-chip memory, so many chips hold one model, stage after stage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmviewer.analysis import memory, search
from llmviewer.analysis.pipeline import stages_of
from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph

#: Numbers of chips that one pipeline stage may be split over.
DEGREES = tuple(2**power for power in range(9))


def smallest_system(graph: Graph, build: Callable[[int, int], System], degrees: tuple[int, ...] = DEGREES) -> System:
    """The system with the fewest chips that hold the model; on a tie the one with the widest stages.

    build: (chips of a stage, stages) -> system.  Every chip keeps the weights of its layers and the cache of
    `resident_tokens` tokens within the memory an engine may use.
    """
    found: list[tuple[int, int, System]] = []
    refused = ""
    for tensor in degrees:
        try:
            stages = _stages(graph, lambda count, tensor=tensor: build(tensor, count))  # type: ignore[misc]
        except UserError as error:
            refused = str(error)
            continue
        if stages:
            found.append((tensor * stages, -tensor, build(tensor, stages)))
    if not found:
        most = f"a layer split over {degrees[-1]} chips still does not fit on a chip"
        raise UserError(f"--spatial: {refused or most}; give a chip with more memory or weights in fewer bits")
    return min(found, key=lambda entry: entry[:2])[2]


def _stages(graph: Graph, build: Callable[[int], System]) -> int:
    """The fewest pipeline stages that each fit their chips; 0 where a single layer does not fit."""
    shared = build(1).prepared(graph)
    layers = sum(block.repeats for block in shared.blocks if block.is_layer)

    def fits(counts: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[bool]:
        return [_fit(shared, build(layers + 1 - int(count))) for count in counts]

    # `largest` searches for the largest layers + 1 - stages that still fits
    most = search.largest(lambda counts: np.array(fits(np.asarray(counts))), float(layers))
    return int(layers + 1 - most) if most else 0


def _fit(shared: Graph, system: System) -> bool:
    """Whether every pipeline stage holds its weights and its KV cache."""
    budget = system.chip.memory_bytes * system.memory_utilization
    held = (
        memory.weights_bytes(stage) + memory.cache_bytes(stage, system.resident_tokens)
        for stage in stages_of(shared, system)
    )
    return all(bool(np.all(size <= budget)) for size in held)
