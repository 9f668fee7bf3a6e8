"""The forward passes that answer a request, laid out as one array: prefill passes, a representative decode step for
every point, and all real decode steps.  One evaluation of the graph then prices them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Group, Request, Step
from llmviewer.serving.branches import Steps, one_after_another
from llmviewer.serving.generation import ONE, Generation, Shape
from llmviewer.serving.generation import PLAIN as DECODING
from llmviewer.serving.kv_cache import PLAIN, KvCache
from llmviewer.serving.prompts import ends, prefill_passes, whole_or_chunks

#: Forward passes of one evaluation: a million would take gigabytes, for every operator keeps its counts.
MOST_AT_ONCE = 2**15
#: Passes of a request, of which only the times stay, beyond which the answer takes longer than anyone waits.
MOST_PASSES = 2**20
#: Prefill passes and points, of which all counts stay.
MOST_SHOWN = 2**18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """`step` holds, in this order: the prefill passes of every point, one decode step per point (the STAGE shown, with
    input_len keys), and the real decode steps of every point: output_len - 1, one for each place that a round of
    generation can begin at.

    repeats: how often each pass runs.  prefill_starts, decode_starts: where each point's passes begin.
    decode_steps: real ones per point.  tokens: output_len - 1 per point.
    """

    step: Step
    repeats: Array
    points: int
    prefill_starts: Array
    prefill_passes: int
    decode_steps: Array
    tokens: Array

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
        passes = len(self.repeats)
        if passes <= MOST_AT_ONCE:
            yield slice(passes), self.step
            return
        for start, stop in pairwise((0, *range(self.shown, passes, MOST_AT_ONCE), passes)):
            piece = slice(start, stop)
            yield piece, Step(tuple(group.some(piece) for group in self.step.groups))

    def largest(self) -> Schedule:
        """The passes among which the worst for memory is: those shown, and of the real decode steps of every point the
        last, whose context is longest."""
        real = self.decode_steps > 0
        kept = np.concatenate((np.arange(self.shown), (self.decode_starts + self.decode_steps - 1)[real].astype(int)))
        return replace(
            self,
            step=Step(tuple(group.some(kept) for group in self.step.groups)),
            repeats=self.repeats[kept],
            decode_steps=np.where(real, 1.0, 0.0),
        )

    @property
    def decode_starts(self) -> Array:
        """First index of every point's real decode steps."""
        offsets = np.cumsum(self.decode_steps) - self.decode_steps
        return np.asarray(offsets + self.shown)

    def prefill(self, values: Count) -> Array:
        """Sum over the prefill passes of every point."""
        passes = self._full(values)[: self.prefill_passes] * self.repeats[: self.prefill_passes]
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
            steps = self._full(values)[self.shown :] * self.repeats[self.shown :]
            starts = (self.decode_starts - self.shown)[some].astype(int)
            totals[some] = np.add.reduceat(steps, starts)
        return totals

    def through_stages(self, time_s: Count, busiest_s: Count) -> Array:
        """Prefill of every point [s] where each pass follows the one before it through a pipeline.

        time_s: of a pass through all stages; busiest_s: through the slowest.
        """
        return self.prefill(busiest_s) + self.worst_prefill(time_s - busiest_s)

    def worst_prefill(self, values: Count) -> Array:
        """The largest value over the prefill passes of every point."""
        prefill = self._full(values)[: self.prefill_passes]
        if self.prefill_passes == self.points:
            return prefill
        return np.asarray(np.maximum.reduceat(prefill, self.prefill_starts.astype(int)))

    def repeated(self, times: Count) -> Schedule:
        """Every prefill pass of a point `times` times: once for each micro-batch."""
        often = (times * np.ones(self.points))[self.owners[: self.prefill_passes].astype(int)]
        repeats = self.repeats.copy()
        repeats[: self.prefill_passes] *= often
        return replace(self, repeats=repeats)

    def filled(self, chunk: Count) -> Schedule:
        """The same where a prompt's last chunk shares its pass with the next prompt's first: it pays for its part of a
        pass of `chunk` tokens, and attends to as many pairs as before.  0: it has a pass of its own."""
        group, owners = self.step.groups[0], self.owners[: self.prefill_passes].astype(int)
        new, cached, repeats = (np.array(column) for column in (group.new_tokens, group.cached_tokens, self.repeats))
        own = new[: self.prefill_passes]
        full = np.maximum((chunk * np.ones(self.points))[owners], own)
        repeats[: self.prefill_passes] *= own / full
        cached[: self.prefill_passes] -= (full - own) / 2.0
        new[: self.prefill_passes] = full
        return replace(self, step=Step((replace(group, new_tokens=new, cached_tokens=cached),)), repeats=repeats)

    def riding(self, decodes: Count, cached: Count) -> Schedule:
        """The same with so many decoding sequences, over `cached` tokens, in each prefill pass of a point."""
        owners = self.owners[: self.prefill_passes].astype(int)
        rest = len(self.repeats) - self.prefill_passes
        beside, over = ((count * np.ones(self.points))[owners] for count in (decodes, cached))
        (group,) = self.step.groups
        riders = replace(
            group,
            batch_size=np.concatenate((beside, np.zeros(rest))),
            new_tokens=np.ones(len(self.repeats)),
            cached_tokens=np.concatenate((over, np.zeros(rest))),
            logit_positions=np.ones(len(self.repeats)),
        )
        return replace(self, step=Step((group, riders)))

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
        return np.broadcast_to(np.asarray(values, dtype=np.float64), self.repeats.shape)


def schedule(
    request: Request,
    token_budget: Count = np.inf,
    cache: KvCache = PLAIN,
    together: Count | None = None,
    generation: Generation = DECODING,
) -> Schedule:
    """The passes of every point of `request` (arrays of one length).

    token_budget: most tokens of one prefill pass (--max-num-batched-tokens).  Prompts that fit it go together, whole;
    a longer prompt goes alone, in chunks.  Prefill of all prompts is one pass where it is infinite.
    cache: what of every prompt is found in it needs no prefill; of the tokens in it, eviction keeps some.
    together: prompts to prefill; None is the whole batch.  generation: what the passes after prefill are.
    """
    batch, prompt, output = _columns(request)
    prompts = batch if together is None else together * np.ones(len(batch))
    found = cache.found(prompt)
    _check(prompt - found, output, token_budget)
    passes, starts = prefill_passes((prompts, prompt - found, found), token_budget, whole_or_chunks)
    branches = generation.branches
    if branches is not None:
        _check(branches.prefilled((batch, prompt, output))[1], output, token_budget)
        real = branches.steps((batch, prompt, output), token_budget)
    else:
        real = one_after_another(batch, prompt, output - 1.0)
    laid_out = _laid_out((batch, prompt, output), (passes, starts), real)
    if generation.branches is None and generation.shape is not ONE:
        laid_out = _shaped(laid_out, generation.shape)
    return laid_out if cache.kept == 1.0 else _evicted(laid_out, cache.kept)


def largest_passes(
    request: Request, token_budget: Count = np.inf, cache: KvCache = PLAIN, generation: Generation = DECODING
) -> Schedule:
    """The passes of every point among which the worst for memory is: what a pass holds grows with its context, so of
    the chunks of a prompt the first and the last two, and of the real decode steps the last."""
    batch, prompt, output = _columns(request)
    found = cache.found(prompt)
    passes, starts = prefill_passes((batch, prompt - found, found), token_budget, ends)
    steps = np.minimum(output - 1.0, 1.0)
    if generation.branches is not None:
        real = generation.branches.largest((batch, prompt, output), token_budget)
    else:
        real = one_after_another(batch, prompt + output - 1.0 - steps, steps)
    laid_out = _laid_out((batch, prompt, output), (passes, starts), real)
    if generation.branches is None and generation.shape is not ONE:
        laid_out = _shaped(laid_out, generation.shape)
    return laid_out if cache.kept == 1.0 else _evicted(laid_out, cache.kept)


def _evicted(plan: Schedule, kept: float) -> Schedule:
    """The same passes over what eviction has left of the cache."""
    return replace(plan, step=Step(tuple(replace(group, kept=kept) for group in plan.step.groups)))


def check_passes(request: Request, token_budget: float = np.inf) -> None:
    """Raise for a request that takes more forward passes than memory holds or anyone waits for."""
    _, prompt, output = _columns(request)
    _check(prompt, output, token_budget)


def _check(prompt: Array, output: Array, token_budget: Count) -> None:
    shown = np.sum(np.where(prompt > token_budget, np.ceil(prompt / token_budget), 1.0) + 1.0)
    passes = {"prefill of the request": shown, "the request": shown + np.sum(output - 1.0)}
    ways = {"prefill of the request": "a larger token budget", "the request": "fewer output tokens"}
    for (what, total), most in zip(passes.items(), (MOST_SHOWN, MOST_PASSES), strict=True):
        if total > most:
            raise UserError(
                f"{what} takes {total:,.0f} forward passes; allowed: at most {most:,} "
                f"({ways[what]}, or fewer points at once)"
            )


def _laid_out(request: tuple[Array, Array, Array], prefill: tuple[tuple[Array, ...], Array], real: Steps) -> Schedule:
    """request: batch sizes, prompts (the keys of the step shown) and output lengths.  prefill: passes, and where those
    of each point begin."""
    (batch, prompt, output), (passes, starts) = request, prefill
    one = np.ones(len(batch))
    group = Group(
        batch_size=np.concatenate((passes[0], batch, real.batch_size)),
        new_tokens=np.concatenate((passes[1], one, real.new_tokens)),
        cached_tokens=np.concatenate((passes[2], prompt - 1.0, real.cached_tokens)),
        logit_positions=np.concatenate((passes[3], one, real.logit_positions)),
    )
    return Schedule(
        step=Step((group,)),
        repeats=np.concatenate((passes[4], one, real.repeats)),
        points=len(batch),
        prefill_starts=starts,
        prefill_passes=len(passes[0]),
        decode_steps=real.counts,
        tokens=output - 1.0,
    )


def _shaped(plan: Schedule, shape: Shape) -> Schedule:
    """The schedule with decode steps of another shape than one token each."""
    (group,) = plan.step.groups
    before, owners = plan.prefill_passes, plan.owners[plan.prefill_passes :].astype(int)

    def after(first: Array, value: Count) -> Array:
        """`value` for decode steps, what `first` says for prefill."""
        each = np.broadcast_to(np.asarray(value, dtype=np.float64), plan.points)
        return np.concatenate((first[:before], each[owners]))

    causal = np.full(len(plan.repeats), np.nan)
    pairs = shape.attended_new_pairs
    group = replace(
        group,
        new_tokens=after(group.new_tokens, shape.new_tokens),  # type: ignore[arg-type]
        cached_tokens=group.cached_tokens + after(np.zeros(before), shape.ahead),
        logit_positions=after(group.logit_positions, shape.logit_positions),  # type: ignore[arg-type]
        attended_new_pairs=None if pairs is None else after(causal, pairs),
    )
    return replace(plan, step=Step((group,)))


def _columns(request: Request) -> tuple[Array, ...]:
    sizes = (request.batch_size, request.input_len, request.output_len)
    return tuple(np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in sizes)))
