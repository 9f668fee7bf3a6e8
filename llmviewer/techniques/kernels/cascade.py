"""Cascade attention: a kernel reads the keys that all sequences have in common once, another reads the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Count, present, total
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import Access, Operator, Tensor, whole
from llmviewer.core.workload import Group
from llmviewer.ops.attention import AttentionInputs, AttentionShape
from llmviewer.techniques.kernels.flash_decoding import PARTIAL_STATISTICS, PREFIX_KERNEL, combine

#: Builds the attention kernel of a shape and its inputs.
Kernel = Callable[[AttentionShape, AttentionInputs], Operator]
#: Partial results of a query and head: over the common keys, and over its sequence's own.
PARTS = 2.0


def has_common_keys(shape: AttentionShape) -> bool:
    """Whether sequences have cached keys in common that every query attends to.

    Layers with a window, chunks or selected keys attend to others; engines run no cascade there.
    """
    every_key = shape.causal and not shape.chunk and not shape.compress and min(shape.window, shape.selected) == np.inf
    return every_key and any(present(group.common_tokens) for group in shape.groups)


def cascade(shape: AttentionShape, inputs: AttentionInputs, kernel: Kernel) -> tuple[Operator, ...]:
    """The kernel over the common keys, the one over the others, and the one that merges their partial results.

    The first has the queries of all sequences as one sequence of B n tokens, which sees P keys: they are read once
    instead of B times.  A pass without a common prefix, or of one sequence, runs the second kernel alone.
    Additional traffic: 2 (d_v + 2) x 4 bytes per query head and token, written and read.
    Source: https://flashinfer.ai/2024/02/02/cascade-inference.html
    """
    runs = [np.where((g.common_tokens > 0.0) & (g.batch_size > 1.0), 1.0, 0.0) for g in shape.groups]
    pairs = list(zip(shape.groups, runs, strict=True))
    before = replace(shape, groups=tuple(_common(*pair) for pair in pairs), causal=False)
    after = replace(shape, groups=tuple(_own(*pair) for pair in pairs))
    tokens: Count = total(group.tokens * run for group, run in pairs)
    partial_results = tokens * (PARTS * shape.heads)
    partials = Tensor(
        name="attention_partials",
        elements=partial_results * (shape.v_dim + PARTIAL_STATISTICS),
        dtype=DTYPES["fp32"],
    )
    somewhere = np.where(tokens > 0.0, 1.0, 0.0)
    alone = tokens / shape.queries()  # share of the queries that see a common prefix
    first = kernel(before, _over(shape, before, replace(inputs, extra=())))
    second = kernel(after, _over(shape, after, inputs))
    half = Access(partials, partials.elements / PARTS)
    out = Access(second.output, second.output.elements * (1.0 - alone))
    prefix = replace(
        first, name=PREFIX_KERNEL, where=somewhere, writes=(half,),
        reads=(Access(inputs.q, inputs.q.elements * alone), *first.reads[1:]),
    )  # fmt: skip
    merged = combine(second, partials, partial_results, somewhere)
    merged = replace(merged, writes=(Access(second.output, second.output.elements * alone),), reads=(whole(partials),))
    return prefix, replace(second, writes=(out, half)), merged


def _common(group: Group, runs: Count) -> Group:
    """All queries of a group as one sequence over the keys in common."""
    queries = np.maximum(group.tokens, 1.0)
    keys = group.common_tokens * runs
    return replace(
        group, batch_size=runs, new_tokens=queries, cached_tokens=keys - queries, attended_new_pairs=None,
        common_tokens=0.0,
    )  # fmt: skip


def _own(group: Group, runs: Count) -> Group:
    """A group over the keys of each sequence alone."""
    return replace(group, cached_tokens=group.cached_tokens - group.common_tokens * runs, common_tokens=0.0)


def _over(shape: AttentionShape, part: AttentionShape, inputs: AttentionInputs) -> AttentionInputs:
    """The inputs with the keys and values of a part of the shape."""
    share = part.keys() / shape.keys()

    def scaled(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(Access(access.tensor, access.elements * share) for access in accesses)

    return replace(inputs, k=scaled(inputs.k), v=scaled(inputs.v))
