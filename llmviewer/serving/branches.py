"""Decode passes of a request: one token after another, or an outline and then parallel branches of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.serving.prompts import PassSplitter, all_passes, first_and_last_passes, prefill_passes, prompt_thresholds

#: Batch sizes, prompt lengths and output lengths, one entry per point.
Columns: TypeAlias = tuple[Array, Array, Array]


@frozen(eq=False)
class Steps:
    """Decode passes, ordered by point.

    counts: number of passes of each point.  Other columns have one entry per pass; repeats: how often it runs.
    """

    batch_size: Array
    new_tokens: Array
    cached_tokens: Array
    logit_positions: Array
    repeats: Array
    counts: Array


def one_after_another(batch: Array, cached: Array, counts: Array) -> Steps:
    """Passes with one new token per sequence, `counts` of them per point, the first over `cached` tokens."""
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


@frozen
class Branches:
    """An outline, generated token by token, then branches that continue it in parallel.

    outline: output lengths -> tokens of the outline, at least 1 and at most the output.  points: branches per sequence;
    a mean need not be whole.  prompt: tokens that every branch prefills before it generates.
    shared: the context before the branches stays in the cache and is stored once; otherwise each branch prefills
    prompt, outline and its own prompt.

    The rest of the answer is divided evenly: with r tokens left, pass i = 0, 1 ... decodes one token of
    min(points, r - i points) branches, ceil(r / points) passes in all, so every token is decoded once.  The first of
    these passes is the prefill of the branches' prompts.
    """

    outline: Callable[[Array], Array]
    points: float
    prompt: float = 0.0
    shared: bool = True

    @property
    def prefilled(self) -> bool:
        """Whether branches prefill prompts, instead of continuing from the cache of the outline."""
        return bool(self.prompt) or not self.shared

    def steps(self, request: Columns, token_budget: Count) -> Steps:
        """All passes after the prompt's prefill."""
        return self._steps(request, token_budget, all_passes, np.inf)

    def peak_memory(self, request: Columns, token_budget: Count) -> Steps:
        """Passes that include the peak of memory: the last two of every part, as contexts grow."""
        return self._steps(request, token_budget, first_and_last_passes, 2.0)

    def branch_prefill(self, request: Columns) -> tuple[Array, Array, Array]:
        """Number of branches that start, tokens that each prefills, and tokens that it finds in the cache."""
        batch, prompt, output = request
        first, rest = self._parts(output)
        before = prompt + first
        found = before - 1.0 if self.shared else 0.0 * before
        return batch * np.minimum(self.points, rest), before + self.prompt - found, found

    def final_cache(self, prompt: Count, output: Count) -> Columns:
        """State at the end: sequences per request, tokens of each, and how many of these the cache stores only once."""
        first, rest = self._parts(output)
        branching = rest > 0.0
        last = prompt + first + self.prompt + self._longest(rest) - 1.0
        return (
            np.where(branching, np.minimum(self.points, rest), 1.0),
            np.where(branching, last, prompt + output - 1.0),
            np.where(branching & self.shared, prompt + first - 1.0, 0.0),
        )

    def prompt_thresholds(self, batch: Count, output: Count, token_budget: Count) -> Array:
        """Prompt lengths beyond which one branch prompt fewer fits a pass, for one point."""
        first, rest = self._parts(output)
        if self.shared or not np.all(rest):
            return np.zeros(0)
        lengths = prompt_thresholds(float(np.max(batch * np.minimum(self.points, rest))), float(np.max(token_budget)))
        lengths = lengths - float(np.max(first)) - self.prompt
        return lengths[lengths > 0.0]

    def _parts(self, output: Count) -> tuple[Array, Array]:
        """Tokens of the outline, and of all branches."""
        tokens = np.asarray(output, dtype=np.float64)
        first = np.minimum(self.outline(tokens), tokens)
        return first, tokens - first

    def _longest(self, rest: Array) -> Array:
        """Tokens of the longest branch."""
        return np.asarray(np.ceil(np.round(rest / self.points, 6)))

    def _steps(self, request: Columns, token_budget: Count, split: PassSplitter, last: float) -> Steps:
        batch, prompt, output = request
        first, rest = self._parts(output)
        outline = np.minimum(first - 1.0, last)
        longest = self._longest(rest)
        onward = np.minimum(np.maximum(longest - 1.0, 0.0), last)
        written = one_after_another(self.points + 0.0 * batch, longest - onward, onward)
        owner = np.repeat(np.arange(len(batch)), onward.astype(int))
        begun = written.cached_tokens  # tokens of a branch at the start of the pass
        return _joined(
            one_after_another(batch, prompt + first - 1.0 - outline, outline),
            self._branch_prefill_passes(request, token_budget, split),
            Steps(
                batch_size=batch[owner] * np.minimum(self.points, rest[owner] - begun * self.points),
                new_tokens=written.new_tokens,
                cached_tokens=(prompt + first + self.prompt - 1.0)[owner] + begun,
                logit_positions=written.logit_positions,
                repeats=written.repeats,
                counts=onward,
            ),
        )

    def _branch_prefill_passes(self, request: Columns, token_budget: Count, split: PassSplitter) -> Steps:
        """Prefill passes of the branches within the token budget, which does not apply to a single token per branch."""
        prompts = self.branch_prefill(request)
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
    """The passes of all parts, part by part within each point."""
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
