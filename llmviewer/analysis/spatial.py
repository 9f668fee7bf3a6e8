"""Spatial systems: weights and KV cache stay in on-chip memory, so many chips hold one model, stage after stage."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from llmviewer.analysis import memory
from llmviewer.analysis.pipeline import stages_of
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
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
            refused = error.marked
            continue
        if stages:
            found.append((tensor * stages, -tensor, build(tensor, stages)))
    if not found:
        most = f"a layer split over {degrees[-1]} chips still does not fit on a chip"
        raise UserError(f"--spatial: {refused or most}; give a chip with more memory or weights in fewer bits")
    return min(found, key=lambda entry: entry[:2])[2]


def _stages(graph: Graph, build: Callable[[int], System]) -> int:
    """The fewest pipeline stages that each fit their chips; 0 where a single layer does not fit."""
    one = build(1)
    shared = one.prepared(graph)
    layers = sum(block.repeats for block in shared.blocks if block.is_layer)
    if not _fit(shared, build(layers)):
        return 0
    least = float(np.max(_held(shared, one) / _budget(one)))  # stages hold at least what one chip would
    return next(count for count in range(max(1, math.ceil(least - 1e-9)), layers + 1) if _fit(shared, build(count)))


def _fit(shared: Graph, system: System) -> bool:
    """Whether every pipeline stage holds its weights and its KV cache."""
    return all(bool(np.all(_held(stage, system) <= _budget(system))) for stage in stages_of(shared, system))


def _held(stage: Graph, system: System) -> Count:
    """Weights and KV cache of a stage [byte]."""
    return memory.weights_bytes(stage) + memory.cache_bytes(stage, system.resident_tokens)


def _budget(system: System) -> Count:
    return system.chip.memory_bytes * system.memory_utilization
