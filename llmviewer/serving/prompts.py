"""Prefill passes of prompts within a token budget: together, one after another, or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache

#: One prefill pass: batch_size, new_tokens, cached_tokens, logit_positions, and how often it runs.
PrefillPass: TypeAlias = tuple[float, float, float, float, float]
#: batch_size, tokens to prefill, tokens found in the cache, token budget -> the passes of one point.
PassSplitter: TypeAlias = Callable[[float, float, float, float], list[PrefillPass]]


def prefill_passes(
    prompts: tuple[Array, Array, Count], budget: Count, split: PassSplitter
) -> tuple[tuple[Array, ...], Array]:
    """Columns (batch, new, cached, logits, repeats) of the prefill passes, and index of the first pass of each point.

    prompts: their number, tokens to prefill, tokens found in the cache.  budget: most tokens of a pass.
    """
    batch, new, found = prompts
    starts = np.arange(float(len(batch)))
    cached = found + np.zeros(len(batch))
    if np.all(batch * new <= budget):
        one = np.ones(len(batch))
        return (batch, new, cached, one, one), starts
    budgets = budget * np.ones(len(batch))
    rows: list[PrefillPass] = []
    for point in range(len(batch)):
        starts[point] = len(rows)
        rows += split(float(batch[point]), float(new[point]), float(cached[point]), float(budgets[point]))
    columns = np.array(rows, dtype=np.float64).T
    return tuple(np.ascontiguousarray(column) for column in columns), starts


def all_passes(batch: float, new: float, found: float, budget: float) -> list[PrefillPass]:
    """All prefill passes of one point within a token budget."""
    if batch * new <= budget:
        return [(batch, new, found, 1.0, 1.0)]
    if new > budget:
        return _chunks(batch, new, found, budget)
    per_pass = min(np.floor(budget / new), batch)
    whole, rest = divmod(batch, per_pass)
    passes = [(per_pass, new, found, 1.0, whole)]
    return [*passes, (rest, new, found, 1.0, 1.0)] if rest else passes


def prompt_thresholds(batch: float, budget: float, cache: KvCache = DEFAULT_KV_CACHE) -> Array:
    """Prompt lengths beyond which one prompt fewer fits a pass, in ascending order: budget // k new tokens for k
    prompts.  At most 2 sqrt(budget) values.  With prefix hits in whole pages, a length is late by at most one page."""
    if not np.isfinite(budget) or cache.hit_rate >= 1.0:
        return np.zeros(0)
    few = np.arange(1.0, np.floor(np.sqrt(budget)) + 1.0)
    per_pass = np.concatenate((few, budget // few, [batch]))
    new = np.unique(budget // per_pass[per_pass <= batch])
    return np.floor(new[new > 0] / (1.0 - cache.hit_rate))


def first_and_last_passes(batch: float, new: float, found: float, budget: float) -> list[PrefillPass]:
    """Prefill passes of one point; of many chunks, only the first and the last two."""
    last = int(np.ceil(new / budget)) - 1
    if last < 3:
        return all_passes(batch, new, found, budget)
    return _chunks(batch, new, found, budget, (0, last - 1, last))


def _chunks(batch: float, new: float, found: float, budget: float, which: Iterable[int] = ()) -> list[PrefillPass]:
    """Chunks of a prompt: all, or those in `which`.  Prompts are not mixed; only the last chunk computes logits."""
    starts = [budget * number for number in which or range(int(np.ceil(new / budget)))]
    return [(1.0, min(budget, new - at), found + at, float(new - at <= budget), batch) for at in starts]
