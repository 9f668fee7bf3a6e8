"""How prompts are cut into prefill passes: together, one after another, or in chunks, under a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.serving.kv_cache import PLAIN, KvCache

#: One prefill pass: batch_size, new_tokens, cached_tokens, logit_positions, and how often it runs.
Pass: TypeAlias = tuple[float, float, float, float, float]
#: batch_size, tokens to prefill, tokens found in the cache, token budget -> the passes of one point.
Split: TypeAlias = Callable[[float, float, float, float], list[Pass]]


def prefill_passes(prompts: tuple[Array, Array, Count], budget: Count, split: Split) -> tuple[tuple[Array, ...], Array]:
    """Columns (batch, new, cached, logits, weight) of the prefill passes, and where each point's begin.

    prompts: how many, tokens to prefill, tokens found in the cache.  budget: most tokens of a pass.
    """
    batch, new, found = prompts
    starts = np.arange(float(len(batch)))
    cached = found + np.zeros(len(batch))
    if np.all(batch * new <= budget):
        one = np.ones(len(batch))
        return (batch, new, cached, one, one), starts
    budgets = budget * np.ones(len(batch))
    rows: list[Pass] = []
    for point in range(len(batch)):
        starts[point] = len(rows)
        rows += split(float(batch[point]), float(new[point]), float(cached[point]), float(budgets[point]))
    columns = np.array(rows, dtype=np.float64).T
    return tuple(np.ascontiguousarray(column) for column in columns), starts


def whole_or_chunks(batch: float, new: float, found: float, budget: float) -> list[Pass]:
    """The passes of one point under a budget."""
    if batch * new <= budget:
        return [(batch, new, found, 1.0, 1.0)]
    if new > budget:
        return _chunks(batch, new, found, budget)
    together = min(np.floor(budget / new), batch)
    whole, rest = divmod(batch, together)
    passes = [(together, new, found, 1.0, whole)]
    return [*passes, (rest, new, found, 1.0, 1.0)] if rest else passes


def falls(batch: float, budget: float, cache: KvCache = PLAIN) -> Array:
    """Prompt lengths beyond which one prompt less goes into a pass, shortest first: budget // k new tokens for k
    together.  At most 2 sqrt(budget) differ.  Where pages of a prompt are found in the cache, a page late at most."""
    if not np.isfinite(budget) or cache.hit_rate >= 1.0:
        return np.zeros(0)
    few = np.arange(1.0, np.floor(np.sqrt(budget)) + 1.0)
    together = np.concatenate((few, budget // few, [batch]))
    new = np.unique(budget // together[together <= batch])
    return np.floor(new[new > 0] / (1.0 - cache.hit_rate))


def ends(batch: float, new: float, found: float, budget: float) -> list[Pass]:
    """Of many chunks the first and the last two."""
    last = int(np.ceil(new / budget)) - 1
    if last < 3:
        return whole_or_chunks(batch, new, found, budget)
    return _chunks(batch, new, found, budget, (0, last - 1, last))


def _chunks(batch: float, new: float, found: float, budget: float, which: Iterable[int] = ()) -> list[Pass]:
    """All chunks of a prompt, or those asked for.  Every prompt goes alone; the last chunk asks for logits."""
    starts = [budget * number for number in which or range(int(np.ceil(new / budget)))]
    return [(1.0, min(budget, new - at), found + at, float(new - at <= budget), batch) for at in starts]
