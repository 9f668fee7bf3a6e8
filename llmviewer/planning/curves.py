"""Times of one structure's passes at representative steps, from a few evaluations of its graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llmviewer.api.configuration import images_s
from llmviewer.core.counts import Array
from llmviewer.core.workload import Group
from llmviewer.planning.space import Structure
from llmviewer.planning.steady_state import Curves
from llmviewer.planning.workload import Workload
from llmviewer.simulation.cache_capacity import CacheCapacity, cache_capacity
from llmviewer.simulation.step_times import LONGEST_CONTEXT, check
from llmviewer.simulation.table_building import ALL, Passes, Sizes, prompts

#: Sequences of the decode steps that are evaluated.
SEQUENCES = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048.0])


def curves_of(structure: Structure, workload: Workload, budgets: Array) -> Curves:
    """The times of a structure's passes, infinite where no request fits its cache.  budgets: most tokens of a step,
    ascending.

    Raises UserError for what a simulation does not price.
    """
    one = structure.configuration
    check(one)
    room = cache_capacity(one, workload.input_len + workload.output_len)
    generation = one.system.generation
    found = float(one.system.kv_cache.prefix_hit(workload.input_len)) or workload.repeated
    new = workload.input_len - found
    packed = np.maximum(np.floor(budgets / new), 1.0)
    round_s, alone_s, full_s = np.zeros(len(SEQUENCES)), np.zeros(len(budgets)), np.zeros(len(budgets))
    slots = _slots(room, workload, found if one.system.kv_cache.shared else 0.0)
    if not slots:
        round_s, alone_s = np.full(len(SEQUENCES), np.inf), np.full(len(budgets), np.inf)
    for times, passes, caches in _passes(structure, room) if slots else ():
        decode_s, single_s, several_s = _priced(passes, workload, budgets, packed, found)
        round_s += times * decode_s
        alone_s += caches * single_s
        full_s += caches * several_s
    tower_s = images_s(one, workload.images)
    alone_s, full_s = alone_s + tower_s, full_s + packed * tower_s
    outside_s = float(np.max(one.system.outside_kernels_s))
    step_s = (round_s + outside_s) / float(np.max(generation.tokens))
    together_s = np.where(packed > 1.0, (full_s - alone_s) / np.maximum(packed - 1.0, 1.0), 0.0)
    columns = {
        "alone_s": alone_s,
        "together_s": together_s,
        "packed": packed,
        "passes": np.ceil(new / budgets),
        "slots": np.full(len(budgets), slots),
    }
    return Curves(
        sequences=SEQUENCES,
        step_s=step_s,
        request_s=float(np.max(one.system.request_s(step_s[0] if slots else 0.0))),
        **{name: np.asarray(values)[:, None, None] for name, values in columns.items()},
    )


def _passes(structure: Structure, room: CacheCapacity) -> Iterator[tuple[float, Passes, bool]]:
    """Models of a decode round: how often each runs, its passes, and whether it prefills prompts."""
    one = structure.configuration
    sizes = Sizes(
        sequences=room.max_sequences, tokens=room.pass_tokens, context=min(float(room.max_context), LONGEST_CONTEXT)
    )
    yield 1.0, Passes(model=one.model, system=one.system, decode=one.system.generation.shape, sizes=sizes), True
    for drafter in one.system.drafters:
        draft = drafter.draft
        passes = Passes(model=draft.model, system=drafter.system, decode=draft.shape, sizes=sizes)
        yield float(np.max(draft.passes)), passes, draft.caches


def _priced(
    passes: Passes, workload: Workload, budgets: Array, packed: Array, found: float
) -> tuple[Array, Array, Array]:
    """Times [s] of decode steps over SEQUENCES, and per token budget of one prompt and of a pass of `packed` prompts.

    All passes are evaluated at once.  found: tokens of each prompt that are in the prefix cache.
    """
    length, count = workload.input_len, len(SEQUENCES)
    starts = [np.arange(found, length, budget) for budget in budgets]
    cached = np.concatenate(starts)
    new = np.concatenate([np.minimum(length - start, budget) for start, budget in zip(starts, budgets, strict=True)])
    context = np.full(count, length + 0.5 * workload.output_len)
    parts = (
        passes.decoding(SEQUENCES, context),
        prompts(1.0, new, cached, cached + new >= length),
        prompts(packed, np.full(len(budgets), length - found), found, packed),
    )
    seconds = passes.times(_joined(parts))[ALL]
    firsts = np.cumsum([count, *(len(start) for start in starts)])
    return seconds[:count], np.add.reduceat(seconds[: firsts[-1]], firsts[:-1]), seconds[firsts[-1] :]


def _joined(parts: Sequence[Group]) -> Group:
    """Passes of several groups side by side, as one group of arrays; the first ones may attend to a tree of drafts."""
    sizes = [int(np.size(part.cached_tokens)) for part in parts]

    def column(name: str) -> Array:
        values = (np.broadcast_to(getattr(part, name), size) for part, size in zip(parts, sizes, strict=True))
        return np.concatenate(list(values)).astype(float)

    new, tree = column("new_tokens"), parts[0].attended_new_pairs
    pairs = new * (new + 1.0) / 2.0
    if tree is not None:
        pairs[: sizes[0]] = tree
    return Group(
        batch_size=column("batch_size"),
        new_tokens=new,
        cached_tokens=column("cached_tokens"),
        logit_positions=column("logit_positions"),
        attended_new_pairs=None if tree is None else pairs,
    )


def _slots(room: CacheCapacity, workload: Workload, shared: float) -> float:
    """Sequences at half of their answers whose KV cache fits; none where a whole request does not.

    shared: tokens of their prompts that are stored once for all.
    """
    whole = np.ceil((workload.input_len + workload.output_len) / room.block_tokens) + room.sequence_blocks
    if room.blocks < whole or workload.input_len + workload.output_len > room.max_context:
        return 0.0
    typical = np.ceil((workload.input_len + 0.5 * workload.output_len) / room.block_tokens) + room.sequence_blocks
    common = np.floor(shared / room.block_tokens)
    return max(float(np.floor((room.blocks - common) / (typical - common))), 1.0)
