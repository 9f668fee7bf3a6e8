"""The forward passes that answer a request, laid out as one array: prefill passes, a representative decode step for
every point, and all real decode steps.  One evaluation of the graph then prices them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from llmviewer.errors import UserError
from llmviewer.ir import Array, Count
from llmviewer.kv_cache import PLAIN, KvCache
from llmviewer.workload import Group, Request, Step

#: One prefill pass: batch_size, new_tokens, cached_tokens, logit_positions, and how often it runs.
Pass: TypeAlias = tuple[float, float, float, float, float]
#: batch_size, tokens to prefill, tokens found in the cache, token budget -> the passes of one point.
Split: TypeAlias = Callable[[float, float, float, float], list[Pass]]

#: Forward passes of one evaluation: a million would take gigabytes, for every operator keeps its counts.
MOST_AT_ONCE = 2**15
#: Passes of a request, of which only the times stay, beyond which the answer takes longer than anyone waits.
MOST_PASSES = 2**20
#: Prefill passes and points, of which all counts stay.
MOST_SHOWN = 2**18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """`step` holds, in this order: the prefill passes of every point, one decode step per point (the STAGE shown, with
    input_len keys), and output_len - 1 real decode steps per point.

    weights: how often each pass runs.  prefill_starts, decode_starts: where each point's passes begin.
    decode_steps: output_len - 1 per point.
    """

    step: Step
    weights: Array
    points: int
    prefill_starts: Array
    prefill_passes: int
    decode_steps: Array

    @property
    def owners(self) -> Array:
        """Which point every pass belongs to."""
        point = np.arange(float(self.points))
        prefill = np.repeat(point, np.diff(np.append(self.prefill_starts, self.prefill_passes)).astype(int))
        return np.concatenate((prefill, point, np.repeat(point, self.decode_steps.astype(int))))

    @property
    def shown(self) -> int:
        """The passes whose operators a result shows: all but the real decode steps."""
        return self.prefill_passes + self.points

    def pieces(self) -> Iterator[tuple[slice, Step]]:
        """All passes in one piece; where they are too many, what is shown first and the real decode steps in pieces."""
        passes = len(self.weights)
        if passes <= MOST_AT_ONCE:
            yield slice(passes), self.step
            return
        for start, stop in pairwise((0, *range(self.shown, passes, MOST_AT_ONCE), passes)):
            piece = slice(start, stop)
            yield piece, Step(tuple(group.some(piece) for group in self.step.groups))

    @property
    def decode_starts(self) -> Array:
        """First index of every point's real decode steps."""
        offsets = np.cumsum(self.decode_steps) - self.decode_steps
        return np.asarray(offsets + self.shown)

    def prefill(self, values: Count) -> Array:
        """Sum over the prefill passes of every point."""
        passes = self._full(values)[: self.prefill_passes] * self.weights[: self.prefill_passes]
        if self.prefill_passes == self.points:
            return passes
        return np.add.reduceat(passes, self.prefill_starts.astype(int))

    def decode(self, values: Count) -> Array:
        """The representative decode step of every point."""
        return self._full(values)[self.prefill_passes : self.shown]

    def generated(self, values: Count) -> Array:
        """Sum over all real decode steps of every point; 0 where there are none."""
        totals = np.zeros(self.points)
        some = self.decode_steps > 0
        if some.any():
            steps = self._full(values)[self.shown :]
            starts = (self.decode_starts - self.shown)[some].astype(int)
            totals[some] = np.add.reduceat(steps, starts)
        return totals

    def worst_prefill(self, values: Count) -> Array:
        """The largest value over the prefill passes of every point."""
        prefill = self._full(values)[: self.prefill_passes]
        if self.prefill_passes == self.points:
            return prefill
        return np.asarray(np.maximum.reduceat(prefill, self.prefill_starts.astype(int)))

    def repeated(self, times: Count) -> Schedule:
        """Every prefill pass of a point `times` times: once for each micro-batch."""
        often = (times * np.ones(self.points))[self.owners[: self.prefill_passes].astype(int)]
        weights = self.weights.copy()
        weights[: self.prefill_passes] *= often
        return replace(self, weights=weights)

    def worst(self, values: Count) -> Array:
        """The largest value over all passes of every point."""
        full = self._full(values)
        worst = np.maximum(self.worst_prefill(full), self.decode(full))
        some = self.decode_steps > 0
        if some.any():
            worst[some] = np.maximum(worst[some], np.maximum.reduceat(full, self.decode_starts[some].astype(int)))
        return worst

    def _full(self, values: Count) -> Array:
        """One value per pass, or per pass shown."""
        if isinstance(values, np.ndarray) and values.size > 1:
            return values
        return np.broadcast_to(np.asarray(values, dtype=np.float64), self.weights.shape)


def schedule(
    request: Request, token_budget: float = np.inf, cache: KvCache = PLAIN, together: Count | None = None
) -> Schedule:
    """The passes of every point of `request` (arrays of one length).

    token_budget: most tokens of one prefill pass (--max-num-batched-tokens).  Prompts that fit it go together, whole;
    a longer prompt goes alone, in chunks.  Prefill of all prompts is one pass where it is infinite.
    cache: what of every prompt is found in it needs no prefill; of the tokens in it, eviction keeps some.
    together: prompts to prefill; None is the whole batch.
    """
    batch, prompt, output = _columns(request)
    prompts = batch if together is None else together * np.ones(len(batch))
    found = cache.found(prompt)
    _check(prompt - found, output, token_budget)
    passes, starts = _prefill_passes((prompts, prompt - found, found), token_budget, _split)
    laid_out = _laid_out((batch, prompt), passes, starts, output - 1.0, prompt)
    return laid_out if cache.kept == 1.0 else _evicted(laid_out, cache.kept)


def largest_passes(request: Request, token_budget: float = np.inf, cache: KvCache = PLAIN) -> Schedule:
    """The passes of every point among which the worst for memory is: what a pass holds grows with its context, so of
    the chunks of a prompt the first and the last two, and of the real decode steps the last."""
    batch, prompt, output = _columns(request)
    found = cache.found(prompt)
    passes, starts = _prefill_passes((batch, prompt - found, found), token_budget, _ends)
    steps = np.minimum(output - 1.0, 1.0)
    laid_out = _laid_out((batch, prompt), passes, starts, steps, prompt + output - 1.0 - steps)
    return laid_out if cache.kept == 1.0 else _evicted(laid_out, cache.kept)


def _evicted(plan: Schedule, kept: float) -> Schedule:
    """The same passes over what eviction has left of the cache."""
    return replace(plan, step=Step(tuple(replace(group, kept=kept) for group in plan.step.groups)))


def check_passes(request: Request, token_budget: float = np.inf) -> None:
    """Raise for a request that takes more forward passes than memory holds or anyone waits for."""
    _, prompt, output = _columns(request)
    _check(prompt, output, token_budget)


def _check(prompt: Array, output: Array, token_budget: float) -> None:
    shown = np.sum(np.where(prompt > token_budget, np.ceil(prompt / token_budget), 1.0) + 1.0)
    passes = {"prefill of the request": shown, "the request": shown + np.sum(output - 1.0)}
    ways = {"prefill of the request": "a larger token budget", "the request": "fewer output tokens"}
    for (what, total), most in zip(passes.items(), (MOST_SHOWN, MOST_PASSES), strict=True):
        if total > most:
            raise UserError(
                f"{what} takes {total:,.0f} forward passes; allowed: at most {most:,} "
                f"({ways[what]}, or fewer points at once)"
            )


def _laid_out(
    shown: tuple[Array, Array], passes: tuple[Array, ...], starts: Array, steps: Array, cached: Array
) -> Schedule:
    """shown: batch_size and keys of the decode step shown.  steps, cached: how many real decode steps every point
    has, and the tokens cached before the first of them."""
    batch, prompt = shown
    counts = steps.astype(int)
    offsets = np.arange(float(counts.sum())) - np.repeat(np.cumsum(steps) - steps, counts)
    one = np.ones(len(batch) + len(offsets))
    group = Group(
        batch_size=np.concatenate((passes[0], batch, np.repeat(batch, counts))),
        new_tokens=np.concatenate((passes[1], one)),
        cached_tokens=np.concatenate((passes[2], prompt - 1.0, np.repeat(cached, counts) + offsets)),
        logit_positions=np.concatenate((passes[3], one)),
    )
    return Schedule(
        step=Step((group,)),
        weights=np.concatenate((passes[4], one)),
        points=len(batch),
        prefill_starts=starts,
        prefill_passes=len(passes[0]),
        decode_steps=steps,
    )


def _columns(request: Request) -> tuple[Array, ...]:
    sizes = (request.batch_size, request.input_len, request.output_len)
    return tuple(np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in sizes)))


def _prefill_passes(
    prompts: tuple[Array, Array, Count], budget: float, split: Split
) -> tuple[tuple[Array, ...], Array]:
    """Columns (batch, new, cached, logits, weight) of the prefill passes, and where each point's begin.

    prompts: how many, tokens to prefill, tokens found in the cache.
    """
    batch, new, found = prompts
    starts = np.arange(float(len(batch)))
    cached = found + np.zeros(len(batch))
    if np.all(batch * new <= budget):
        one = np.ones(len(batch))
        return (batch, new, cached, one, one), starts
    rows: list[Pass] = []
    for point in range(len(batch)):
        starts[point] = len(rows)
        rows += split(float(batch[point]), float(new[point]), float(cached[point]), budget)
    columns = np.array(rows, dtype=np.float64).T
    return tuple(np.ascontiguousarray(column) for column in columns), starts


def _split(batch: float, new: float, found: float, budget: float) -> list[Pass]:
    """The passes of one point under a budget."""
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


def _ends(batch: float, new: float, found: float, budget: float) -> list[Pass]:
    """Of many chunks the first and the last two."""
    last = int(np.ceil(new / budget)) - 1
    if last < 3:
        return _split(batch, new, found, budget)
    return _chunks(batch, new, found, budget, (0, last - 1, last))


def _chunks(batch: float, new: float, found: float, budget: float, which: Iterable[int] = ()) -> list[Pass]:
    """All chunks of a prompt, or those asked for.  Every prompt goes alone; the last chunk asks for logits."""
    starts = [budget * number for number in which or range(int(np.ceil(new / budget)))]
    return [(1.0, min(budget, new - at), found + at, float(new - at <= budget), batch) for at in starts]
