"""Passes that generate, laid out: one token after another, or some so and then branches of the answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.serving.prompts import Split, ends, falls, prefill_passes, whole_or_chunks

#: Batch sizes, prompts and output lengths of every point.
Columns: TypeAlias = tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steps:
    """Passes that generate: of every point its own, in order.

    counts: passes of every point.  The other columns have an entry per pass; weights: how often it runs.
    """

    batch_size: Array
    new_tokens: Array
    cached_tokens: Array
    logit_positions: Array
    repeats: Array
    counts: Array


def one_after_another(batch: Array, cached: Array, counts: Array) -> Steps:
    """Passes of one sequence position each, `counts` of them per point, the first over `cached` tokens."""
    times = counts.astype(int)
    offsets = np.arange(float(times.sum())) - np.repeat(np.cumsum(counts) - counts, times)
    one = np.ones(len(offsets))
    return Steps(
        batch_size=np.repeat(batch, times),
        new_tokens=one,
        cached_tokens=np.repeat(cached, times) + offsets,
        logit_positions=one,
        repeats=one,
        counts=counts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """An outline of some tokens, one after another, then branches that continue it, all of them in every pass.

    outline: output lengths -> tokens of the outline, no more than those, one at least.  points: branches of a sequence;
    a mean may be no whole number.  prompt: tokens that every branch reads before it writes.
    shared: what comes before the branches stays in the cache, which holds it once; otherwise each branch prefills
    prompt, outline and its own prompt.

    The rest of the answer is dealt out evenly: with r tokens left, pass i = 0, 1 ... of the branches decodes a token of
    min(points, r - i points) of them, ceil(r / points) passes in all, and every token is decoded once.  The first of
    these passes is the prefill of the branches' prompts.
    """

    outline: Callable[[Array], Array]
    points: float
    prompt: float = 0.0
    shared: bool = True

    def steps(self, request: Columns, token_budget: Count) -> Steps:
        """All passes after the prompt's prefill."""
        return self._steps(request, token_budget, whole_or_chunks, np.inf)

    def largest(self, request: Columns, token_budget: Count) -> Steps:
        """Those among which the worst for memory is: of every part the last two, for contexts grow."""
        return self._steps(request, token_budget, ends, 2.0)

    def prefilled(self, request: Columns) -> tuple[Array, Array, Array]:
        """Branches that begin, tokens that each of them prefills, and tokens that it finds in the cache."""
        batch, prompt, output = request
        first, rest = self._parts(output)
        before = prompt + first
        found = before - 1.0 if self.shared else 0.0 * before
        return batch * np.minimum(self.points, rest), before + self.prompt - found, found

    def held(self, prompt: Count, output: Count) -> Columns:
        """At the end: sequences of a request, tokens of each, and how many of these the cache holds once for all."""
        first, rest = self._parts(output)
        branching = rest > 0.0
        last = prompt + first + self.prompt + self._longest(rest) - 1.0
        return (
            np.where(branching, np.minimum(self.points, rest), 1.0),
            np.where(branching, last, prompt + output - 1.0),
            np.where(branching & self.shared, prompt + first - 1.0, 0.0),
        )

    def falls(self, batch: Count, output: Count, token_budget: Count) -> Array:
        """Prompt lengths beyond which the prompt of one branch less goes into a pass, of one point."""
        first, rest = self._parts(output)
        if self.shared or not np.all(rest):
            return np.zeros(0)
        lengths = falls(float(np.max(batch * np.minimum(self.points, rest))), float(np.max(token_budget)))
        lengths = lengths - float(np.max(first)) - self.prompt
        return lengths[lengths > 0.0]

    def _parts(self, output: Count) -> tuple[Array, Array]:
        """Tokens of the outline, and those left to the branches."""
        tokens = np.asarray(output, dtype=np.float64)
        first = np.minimum(self.outline(tokens), tokens)
        return first, tokens - first

    def _longest(self, rest: Array) -> Array:
        """Tokens of the longest branch."""
        return np.asarray(np.ceil(np.round(rest / self.points, 6)))

    def _steps(self, request: Columns, token_budget: Count, split: Split, last: float) -> Steps:
        batch, prompt, output = request
        first, rest = self._parts(output)
        outline = np.minimum(first - 1.0, last)
        longest = self._longest(rest)
        onward = np.minimum(np.maximum(longest - 1.0, 0.0), last)
        written = one_after_another(self.points + 0.0 * batch, longest - onward, onward)
        owner = np.repeat(np.arange(len(batch)), onward.astype(int))
        begun = written.cached_tokens  # tokens that a branch has when the pass begins
        return _joined(
            one_after_another(batch, prompt + first - 1.0 - outline, outline),
            self._beginning(request, token_budget, split),
            Steps(
                batch_size=batch[owner] * np.minimum(self.points, rest[owner] - begun * self.points),
                new_tokens=written.new_tokens,
                cached_tokens=(prompt + first + self.prompt - 1.0)[owner] + begun,
                logit_positions=written.logit_positions,
                repeats=written.repeats,
                counts=onward,
            ),
        )

    def _beginning(self, request: Columns, token_budget: Count, split: Split) -> Steps:
        """The prefill of the branches, under the budget of any prefill; one token more of each is no prompt."""
        prompts = self.prefilled(request)
        some = np.flatnonzero(prompts[0] > 0.0)
        batch, new, found = (column[some] for column in prompts)
        budget = np.inf if self.shared and not self.prompt else token_budget
        budget = budget[some] if isinstance(budget, np.ndarray) and budget.size > 1 else budget
        columns, starts = prefill_passes((batch, new, found), budget, split)
        counts = np.zeros(len(prompts[0]))
        counts[some] = np.diff(np.append(starts, len(columns[0])))
        names = ("batch_size", "new_tokens", "cached_tokens", "logit_positions", "repeats")
        return Steps(**dict(zip(names, columns, strict=True)), counts=counts)


def _joined(*parts: Steps) -> Steps:
    """The passes of every point part by part."""
    points = np.arange(len(parts[0].counts))
    owners = np.concatenate([np.repeat(points, part.counts.astype(int)) for part in parts])
    order = np.argsort(owners, kind="stable")

    def column(values: Sequence[Array]) -> Array:
        return np.concatenate(values)[order]

    return Steps(
        batch_size=column([part.batch_size for part in parts]),
        new_tokens=column([part.new_tokens for part in parts]),
        cached_tokens=column([part.cached_tokens for part in parts]),
        logit_positions=column([part.logit_positions for part in parts]),
        repeats=column([part.repeats for part in parts]),
        counts=np.asarray(sum(part.counts for part in parts)),
    )
