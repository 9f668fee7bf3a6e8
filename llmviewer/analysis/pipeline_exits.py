"""Early exit in a pipeline whose later stages fill caches while the next token is already on its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.ir import Graph


class StageTimes(NamedTuple):
    """Times of a pass on one pipeline stage [s].  kernels_s: of one layer of every block, by name."""

    graph: Graph
    kernels_s: Mapping[str, Count]
    time_s: Count


def time_to_next_pass(stages: Sequence[StageTimes], unknown: Sequence[Count]) -> Count:
    """Mean time from the start of a pass to that of the next one [s].

    The next pass starts when the tokens of this one are known, and not before the slowest stage, which does the work of
    all its layers for every pass, can take it: the mean of max(time to the exit, slowest stage).  That is exact for
    stages of one length; otherwise a pass may start sooner and wait in front of a slower stage, so it is an upper
    bound.  unknown: probability that the tokens are not known before each layer.
    Source: EE-LLM, arXiv 2312.04916, pipeline-based inference.
    """
    parts = [part for stage in stages for part in _parts(stage, unknown)]
    slowest = reduce(np.maximum, (stage.time_s for stage in stages))
    always = total(seconds for share, seconds in parts if share is None)
    free = np.maximum(slowest - always, 0.0)  # when the slowest stage can take the next pass
    mean, done = always + free, 0.0 * free
    for share, seconds in parts:
        if share is not None:
            mean = mean + share * (np.maximum(done + seconds, free) - np.maximum(done, free))
            done = done + seconds
    return mean


def _parts(stage: StageTimes, unknown: Sequence[Count]) -> Iterator[tuple[Count | None, Count]]:
    """Parts of a stage in order: probability that the tokens are not known before them, and time [s].

    The probability is None for checks and heads, whose times are means over all passes.  The engine's time and the
    overlap of copies belong to all kernels in proportion.
    """
    graph, kernels, time_s = stage
    factor = time_s / total(kernels[block.name] * float(block.repeats) for block in graph.blocks)
    layers = sorted((number, block.name) for block in graph.blocks if block.is_layer for number in block.numbers)
    yield from ((unknown[number], kernels[name] * factor) for number, name in layers)
    for block in graph.blocks:
        if not block.is_layer:
            share = unknown[layers[-1][0] + 1] if block.name == "send" else None
            yield share, kernels[block.name] * float(block.repeats) * factor
