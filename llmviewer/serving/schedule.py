"""All forward passes of a request as one array: prefill passes, one representative decode step per point, and all real
decode steps.  One evaluation of the graph then prices them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Group, Request, Step
from llmviewer.serving.branches import Columns, Steps, one_after_another
from llmviewer.serving.generation import AUTOREGRESSIVE, ONE_TOKEN, Denoising, Generation, PassShape
from llmviewer.serving.kv_cache import DEFAULT_KV_CACHE, KvCache
from llmviewer.serving.prompts import all_passes, first_and_last_passes, prefill_passes

#: Forward passes of one evaluation: a million would take gigabytes, as every operator stores its counts.
MAX_PASSES_AT_ONCE = 2**15
#: Forward passes of a request, of which only times are stored; more would take too long.
MAX_PASSES = 2**20
#: Prefill passes plus points, of which all counts are stored.
MAX_SHOWN_PASSES = 2**18


@frozen(eq=False)
class Schedule:
    """Forward passes as one `step`, in this order: prefill passes of every point, one decode step per point (the STAGE
    shown, with input_len keys), and the real decode steps of every point: output_len - 1, one for each position at
    which a round of generation can start.

    repeats: how often each pass runs.  prefill_starts, decode_starts: index of the first pass of each point.
    decode_steps: number of real ones per point.  tokens: output_len - 1 per point.
    """

    step: Step
    repeats: Array
    points: int
    prefill_starts: Array
    prefill_passes: int
    decode_steps: Array
    tokens: Array

    @property
    def point_of_pass(self) -> Array:
        """Index of the point that each pass belongs to."""
        point = np.arange(float(self.points))
        prefill = np.repeat(point, np.diff(np.append(self.prefill_starts, self.prefill_passes)).astype(int))
        return np.concatenate((prefill, point, np.repeat(point, self.decode_steps.astype(int))))

    @property
    def shown(self) -> int:
        """Number of passes whose operators a result shows: all but the real decode steps."""
        return self.prefill_passes + self.points

    def pieces(self) -> Iterator[tuple[slice, Step]]:
        """All passes in one piece; if there are too many, first those shown, then the real decode steps in pieces."""
        passes = len(self.repeats)
        if passes <= MAX_PASSES_AT_ONCE:
            yield slice(passes), self.step
            return
        for start, stop in pairwise((0, *range(self.shown, passes, MAX_PASSES_AT_ONCE), passes)):
            piece = slice(start, stop)
            yield piece, Step(tuple(group.select(piece) for group in self.step.groups))

    def peak_memory(self) -> Schedule:
        """Passes that include the peak of memory: those shown, and each point's last decode step, which has the longest
        context."""
        real = self.decode_steps > 0
        kept = np.concatenate((np.arange(self.shown), (self.decode_starts + self.decode_steps - 1)[real].astype(int)))
        return replace(
            self,
            step=Step(tuple(group.select(kept) for group in self.step.groups)),
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

    def decode_sum(self, values: Count) -> Array:
        """Sum over all real decode steps of every point; 0 where there are none."""
        totals = np.zeros(self.points)
        some = self.decode_steps > 0
        if some.any():
            steps = self._full(values)[self.shown :] * self.repeats[self.shown :]
            starts = (self.decode_starts - self.shown)[some].astype(int)
            totals[some] = np.add.reduceat(steps, starts)
        return totals

    def pipelined_prefill(self, time_s: Count, busiest_s: Count, fill_s: Count | None = None) -> Array:
        """Prefill time of every point [s] if its passes follow each other through a pipeline.

        The slowest stage runs all passes; the others add the fill, the longest time that a pass spends in them.
        time_s: of a pass through all pipeline stages; busiest_s: through the slowest one.  fill_s: per point, the fill
        of one token, which makes the time a lower bound over all ways to cut passes into chunks: the slowest stage
        still does all the work, and a token passes every other stage before its first chunk or after its last one.
        """
        fill = self.prefill_max(time_s - busiest_s) if fill_s is None else fill_s
        return self.prefill(busiest_s) + fill

    def prefill_max(self, values: Count) -> Array:
        """The largest value over the prefill passes of every point."""
        prefill = self._full(values)[: self.prefill_passes]
        if self.prefill_passes == self.points:
            return prefill
        return np.asarray(np.maximum.reduceat(prefill, self.prefill_starts.astype(int)))

    def repeated(self, times: Count) -> Schedule:
        """Every prefill pass of a point repeated `times` times, once per micro-batch."""
        factors = (times * np.ones(self.points))[self.point_of_pass[: self.prefill_passes].astype(int)]
        repeats = self.repeats.copy()
        repeats[: self.prefill_passes] *= factors
        return replace(self, repeats=repeats)

    def max_over_passes(self, values: Count) -> Array:
        """The largest value over all passes of every point."""
        full = self._full(values)
        largest = np.maximum(self.prefill_max(full), self.decode(full))
        some = self.decode_steps > 0
        if some.any():
            largest[some] = np.maximum(largest[some], np.maximum.reduceat(full, self.decode_starts[some].astype(int)))
        return largest

    def _full(self, values: Count) -> Array:
        """Values with one entry per pass; an array may cover only the passes shown."""
        if isinstance(values, np.ndarray) and values.size > 1:
            return values
        return np.broadcast_to(np.asarray(values, dtype=np.float64), self.repeats.shape)


def schedule(
    request: Request,
    token_budget: Count = np.inf,
    cache: KvCache = DEFAULT_KV_CACHE,
    prompts_per_pass: Count | None = None,
    generation: Generation = AUTOREGRESSIVE,
) -> Schedule:
    """The forward passes of every point of `request` (arrays of one length).

    token_budget: most tokens of one prefill pass (--max-num-batched-tokens).  Prompts that fit are prefilled together
    and whole; a longer prompt runs by itself, in chunks.  If it is infinite, all prompts are prefilled in one pass.
    cache: its prefix hits need no prefill, and eviction removes cached tokens.
    prompts_per_pass: prompts to prefill; None for the whole batch.  generation: defines the passes after prefill.
    """
    batch, prompt, output = _columns(request)
    prompts = batch if prompts_per_pass is None else prompts_per_pass * np.ones(len(batch))
    found = cache.prefix_hit(prompt)
    _check(prompt - found, output, token_budget)
    passes, starts = prefill_passes((prompts, prompt - found, found), token_budget, all_passes)
    branches = generation.branches
    if generation.denoising is not None:
        return _denoised(generation.denoising, (prompts, batch, prompt, output), (passes, starts))
    if branches is not None:
        _check(branches.branch_prefill((batch, prompt, output))[1], output, token_budget)
        real = branches.steps((batch, prompt, output), token_budget)
    else:
        real = one_after_another(batch, prompt, output - 1.0)
    return _adapted(_assembled((batch, prompt, output), (passes, starts), real), cache, generation, found)


def peak_memory_passes(
    request: Request,
    token_budget: Count = np.inf,
    cache: KvCache = DEFAULT_KV_CACHE,
    generation: Generation = AUTOREGRESSIVE,
) -> Schedule:
    """Passes of every point that include the peak of memory.

    Memory grows with the context, so these are the first and the last two chunks of a prompt and the last decode step.
    """
    batch, prompt, output = _columns(request)
    found = cache.prefix_hit(prompt)
    passes, starts = prefill_passes((batch, prompt - found, found), token_budget, first_and_last_passes)
    if generation.denoising is not None:
        return _denoised(generation.denoising, (batch, batch, prompt, output), (passes, starts))
    steps = np.minimum(output - 1.0, 1.0)
    if generation.branches is not None:
        real = generation.branches.peak_memory((batch, prompt, output), token_budget)
    else:
        real = one_after_another(batch, prompt + output - 1.0 - steps, steps)
    return _adapted(_assembled((batch, prompt, output), (passes, starts), real), cache, generation, found)


def _adapted(plan: Schedule, cache: KvCache, generation: Generation, found: Count) -> Schedule:
    """The schedule with the decode steps of a generation, and cached tokens that are left or common (`found`)."""
    prefilled = generation.branches is not None and generation.branches.prefilled
    if generation.shape is not ONE_TOKEN and not prefilled:
        plan = _shaped(plan, generation.shape)
    if cache.kept == 1.0 and not cache.cascade:
        return plan
    groups = tuple(replace(one, kept=cache.kept) for one in plan.step.groups)
    if cache.cascade:
        common = (found * np.ones(plan.points))[plan.point_of_pass.astype(int)]
        groups = tuple(replace(one, common_tokens=np.minimum(common, one.cached_tokens)) for one in groups)
    return replace(plan, step=Step(groups))


def _denoised(denoising: Denoising, request: tuple[Array, ...], prefill: tuple[tuple[Array, ...], Array]) -> Schedule:
    """The passes of a denoised answer, whose tokens see each other, after those of the prompts alone, which are causal.

    request: prompts to prefill, batch sizes, prompt lengths, output lengths.
    """
    prompts, batch, prompt, output = request
    if denoising.whole:
        prefill = denoising.first_pass((prompts, prompt, output)), np.arange(float(len(batch)))
    sizes = batch, prompt, output
    plan = _assembled(sizes, prefill, denoising.steps_of(sizes), denoising.shown(sizes))
    (group,) = plan.step.groups
    together = np.arange(len(plan.repeats)) >= (0 if denoising.whole else plan.prefill_passes)
    pairs = np.where(together, np.square(group.new_tokens), np.nan)
    return replace(plan, step=Step((replace(group, attended_new_pairs=pairs),)))


def check_passes(request: Request, token_budget: float = np.inf) -> None:
    """Raise UserError for a request with too many forward passes for memory or run time."""
    _, prompt, output = _columns(request)
    _check(prompt, output, token_budget)


def _check(prompt: Array, output: Array, token_budget: Count) -> None:
    shown = np.sum(np.where(prompt > token_budget, np.ceil(prompt / token_budget), 1.0) + 1.0)
    passes = {"prefill of the request": shown, "the request": shown + np.sum(output - 1.0)}
    hints = {"prefill of the request": "a larger token budget", "the request": "fewer output tokens"}
    for (name, total), most in zip(passes.items(), (MAX_SHOWN_PASSES, MAX_PASSES), strict=True):
        if total > most:
            raise UserError(
                f"{name} takes {total:,.0f} forward passes; allowed: at most {most:,} "
                f"(use {hints[name]} or fewer points)"
            )


def _assembled(
    request: Columns, prefill: tuple[tuple[Array, ...], Array], real: Steps, shown: Columns | None = None
) -> Schedule:
    """The schedule of these passes.  request: batch sizes, prompt lengths and output lengths.  prefill: passes, and
    index of the first pass of each point.  shown: new and cached tokens and logits of the step shown; None for one
    token with as many keys as the prompt."""
    (batch, prompt, output), (passes, starts) = request, prefill
    one = np.ones(len(batch))
    new, cached, logits = shown or (one, prompt - 1.0, one)
    group = Group(
        batch_size=np.concatenate((passes[0], batch, real.batch_size)),
        new_tokens=np.concatenate((passes[1], new, real.new_tokens)),
        cached_tokens=np.concatenate((passes[2], cached, real.cached_tokens)),
        logit_positions=np.concatenate((passes[3], logits, real.logit_positions)),
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


def _shaped(plan: Schedule, shape: PassShape) -> Schedule:
    """The schedule with decode steps of another shape than one token."""
    (group,) = plan.step.groups
    before, points = plan.prefill_passes, plan.point_of_pass[plan.prefill_passes :].astype(int)

    def after(first: Array, value: Count) -> Array:
        """`first` in prefill passes, `value` in decode steps."""
        each = np.broadcast_to(np.asarray(value, dtype=np.float64), plan.points)
        return np.concatenate((first[:before], each[points]))

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


#: Tokens with which a decoder begins.
START_TOKENS = 1.0


def with_encoder(plan: Schedule, input_len: Count) -> Schedule:
    """The schedule of a decoder over whole prompts as that of an encoder-decoder.

    A prefill pass decodes the start token in place of the prompt; a decode step has the start token and the generated
    ones in its cache, in place of prompt and generated ones.  The decode step shown is the first one.
    """
    (group,) = plan.step.groups
    inputs = (input_len * np.ones(plan.points))[plan.point_of_pass.astype(int)]
    is_prefill = np.arange(len(plan.repeats)) < plan.prefill_passes
    generated = np.maximum(group.cached_tokens - inputs, 0.0)
    group = replace(
        group,
        new_tokens=np.where(is_prefill, START_TOKENS, group.new_tokens),
        cached_tokens=np.where(is_prefill, 0.0, START_TOKENS + generated),
        input_len=inputs,
    )
    return replace(plan, step=Step((group,)))


def with_filled_chunks(plan: Schedule, chunk: Count) -> Schedule:
    """The schedule if a prompt's last chunk shares its pass with the next prompt's first one.

    The chunk is charged its part of a pass of `chunk` tokens and attends to as many pairs as before.  chunk 0: it
    has its own pass.
    """
    group, points = plan.step.groups[0], plan.point_of_pass[: plan.prefill_passes].astype(int)
    new, cached, repeats = (np.array(column) for column in (group.new_tokens, group.cached_tokens, plan.repeats))
    own = new[: plan.prefill_passes]
    full = np.maximum((chunk * np.ones(plan.points))[points], own)
    repeats[: plan.prefill_passes] *= own / full
    cached[: plan.prefill_passes] -= (full - own) / 2.0
    new[: plan.prefill_passes] = full
    return replace(plan, step=Step((replace(group, new_tokens=new, cached_tokens=cached),)), repeats=repeats)


def with_decodes(plan: Schedule, decodes: Count, cached: Count, shape: PassShape = ONE_TOKEN) -> Schedule:
    """The schedule with `decodes` decoding sequences over `cached` tokens in each prefill pass of a point.

    shape: tokens of these sequences.
    """
    points = plan.point_of_pass[: plan.prefill_passes].astype(int)
    rest = len(plan.repeats) - plan.prefill_passes
    sequences, context = ((count * np.ones(plan.points))[points] for count in (decodes, cached))
    (group,) = plan.step.groups

    def each(count: Count) -> Array:
        """A count of the shape in prefill passes, and any in the others, which have no decoding sequences."""
        return np.concatenate(((count * np.ones(plan.points))[points], np.ones(rest)))

    pairs = shape.attended_new_pairs
    decoding = replace(
        group,
        batch_size=np.concatenate((sequences, np.zeros(rest))),
        new_tokens=each(shape.new_tokens),
        cached_tokens=np.concatenate((context, np.zeros(rest))),
        logit_positions=each(shape.logit_positions),
        attended_new_pairs=None if pairs is None else each(pairs),
    )
    return replace(plan, step=Step((group, decoding)))
