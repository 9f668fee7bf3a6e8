"""Times of one structure's passes at representative steps, from a few evaluations of its graph."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.planning.space import Structure
from llmviewer.planning.steady_state import Curves
from llmviewer.planning.workload import Workload
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.evaluated_passes import ALL, Passes, Sizes, prompts
from llmviewer.simulation.step_times import LONGEST_CONTEXT, check

#: Sequences of the decode steps that are evaluated.
SEQUENCES = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048.0])


def curves_of(structure: Structure, workload: Workload, budgets: Array) -> Curves:
    """The times of a structure's passes.  budgets: most tokens of a step, ascending.

    Raises UserError for what a simulation does not price.
    """
    one = structure.configuration
    check(one)
    room = cache_capacity(one, workload.input_len + workload.output_len)
    targets = list(_passes(structure, room))
    context = np.full(len(SEQUENCES), workload.input_len + 0.5 * workload.output_len)
    generation = one.system.generation
    round_s = sum(times * each.times(each.decoding(SEQUENCES, context))[ALL] for times, each, _ in targets)
    outside_s = float(np.max(one.system.outside_kernels_s))
    prompting = [each for _, each, caches in targets if caches]
    alone_s = sum(_alone(each, workload.input_len, budgets) for each in prompting)
    packed = np.maximum(np.floor(budgets / workload.input_len), 1.0)
    full_s = sum(_packed(each, workload.input_len, packed) for each in prompting)
    together_s = np.where(packed > 1.0, (full_s - alone_s) / np.maximum(packed - 1.0, 1.0), 0.0)
    columns = {
        "alone_s": alone_s,
        "together_s": together_s,
        "packed": packed,
        "passes": np.ceil(workload.input_len / budgets),
        "slots": np.full(len(budgets), _slots(room, workload)),
    }
    return Curves(
        sequences=SEQUENCES,
        step_s=(np.asarray(round_s) + outside_s) / float(np.max(generation.tokens)),
        request_s=one.system.engine.request_s,
        **{name: np.asarray(values)[:, None, None] for name, values in columns.items()},
    )


def _passes(structure: Structure, room: CacheCapacity) -> Iterator[tuple[float, Passes, bool]]:
    """Models of a decode round: how often each runs, its passes, and whether it prefills prompts."""
    one = structure.configuration
    sizes = Sizes(
        sequences=room.max_sequences, tokens=room.token_budget, context=min(float(room.max_context), LONGEST_CONTEXT)
    )
    yield 1.0, Passes(model=one.model, system=one.system, decode=one.system.generation.shape, sizes=sizes), True
    for drafter in one.system.drafters:
        draft = drafter.draft
        passes = Passes(model=draft.model, system=drafter.system, decode=draft.shape, sizes=sizes)
        yield float(np.max(draft.passes)), passes, draft.caches


def _alone(passes: Passes, length: float, budgets: Array) -> Array:
    """Time of the passes of one prompt [s], one per token budget."""
    starts = [np.arange(0.0, length, budget) for budget in budgets]
    cached = np.concatenate(starts)
    new = np.concatenate([np.minimum(length - start, budget) for start, budget in zip(starts, budgets, strict=True)])
    last = (cached + new >= length).astype(float)
    seconds = passes.times(prompts(1.0, new, cached, last))[ALL]
    firsts = np.cumsum([0, *(len(start) for start in starts[:-1])])
    return np.asarray(np.add.reduceat(np.broadcast_to(seconds, cached.shape), firsts))


def _packed(passes: Passes, length: float, packed: Array) -> Array:
    """Time of a pass of so many whole prompts [s]."""
    ones = np.ones(len(packed))
    return passes.times(prompts(packed, length * ones, 0.0, packed))[ALL] * ones


def _slots(room: CacheCapacity, workload: Workload) -> float:
    """Sequences at half of their answers whose KV cache fits; none where a whole request does not."""
    whole = np.ceil((workload.input_len + workload.output_len) / room.block_tokens) + room.sequence_blocks
    if room.blocks < whole or workload.input_len + workload.output_len > room.max_context:
        return 0.0
    typical = np.ceil((workload.input_len + 0.5 * workload.output_len) / room.block_tokens) + room.sequence_blocks
    return max(float(np.floor(room.blocks / typical)), 1.0)
