"""The workload of one forward pass: prefill, decode, chunks and mixed batches differ only in numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, fields, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen

#: Fields of Group with one value per forward pass in a schedule.
PASS_COLUMNS = ("batch_size", "new_tokens", "cached_tokens", "logit_positions")


def whole_tokens(count: Count) -> Count:
    """The count rounded down to whole tokens, tolerating rounding errors (0.29 x 100 is 29)."""
    whole: Count = np.floor(np.round(count, 6))
    return whole


def kept_tokens(cached: Count, kept: float) -> Count:
    """Whole tokens left of `cached` after eviction keeps the share `kept`, at least one."""
    return cached if kept == 1.0 else np.minimum(cached, np.maximum(whole_tokens(cached * kept), 1.0))


@frozen(eq=False)
class Group:
    """Sequences with the same workload in one forward pass; counts are scalars or arrays.

    batch_size sequences, each with new_tokens after cached_tokens, that need logit_positions rows of logits.
    attended_new_pairs: query-key pairs among the new tokens; None (NaN in an array) is causal, n(n+1)/2; a tree or
    lookahead mask has its own number.  kept: share of the cached tokens that eviction has left; only these are read.
    input_len: tokens that an encoder reads, beside which all other numbers are those of the decoder; None without one.
    common_tokens: first cached tokens, the same for all sequences, that a cascade of kernels reads once for all.
    """

    batch_size: Count
    new_tokens: Count
    cached_tokens: Count
    logit_positions: Count
    attended_new_pairs: Count | None = None
    kept: float = 1.0
    input_len: Count | None = None
    common_tokens: Count = 0.0

    def select(self, passes: slice | npt.NDArray[np.intp]) -> Group:
        """The group in some of its passes, given by a slice or indices of its array columns."""
        selected = {name: np.asarray(getattr(self, name))[passes] for name in PASS_COLUMNS}
        pairs = self.attended_new_pairs
        if isinstance(pairs, np.ndarray) and pairs.size > 1:
            selected["attended_new_pairs"] = pairs[passes]
        if isinstance(self.input_len, np.ndarray) and self.input_len.size > 1:
            selected["input_len"] = self.input_len[passes]
        if isinstance(self.common_tokens, np.ndarray) and self.common_tokens.size > 1:
            selected["common_tokens"] = self.common_tokens[passes]
        return replace(self, **selected)  # type: ignore[arg-type]

    @property
    def as_input(self) -> Group:
        """The input of an encoder as a group of its own; without a length of its own it is as long as the sequence."""
        length = self.new_tokens + self.cached_tokens if self.input_len is None else self.input_len
        return Group(batch_size=self.batch_size, new_tokens=length, cached_tokens=0.0, logit_positions=0.0)

    @property
    def over_input(self) -> Group:
        """Its queries over the keys of an encoder's input (cross attention)."""
        before = self.as_input.new_tokens - self.new_tokens
        return replace(self, cached_tokens=before, attended_new_pairs=None, kept=1.0)

    @property
    def tokens(self) -> Count:
        """New tokens of all sequences."""
        return self.batch_size * self.new_tokens

    @property
    def states(self) -> Count:
        """Recurrent states to write: one per sequence, or one per new token if every token needs logits.

        The latter is a verification pass, which may reject any of its tokens.
        """
        return self.batch_size * np.where(self.logit_positions < self.new_tokens, 1.0, self.new_tokens)

    @property
    def runs(self) -> tuple[Count, Count]:
        """Runs of tokens whose choices of experts are related, and tokens of each: draft tokens that are verified.

        All other tokens are runs of one, since those of a prompt use all experts anyway.
        """
        verifies = self.logit_positions >= self.new_tokens
        return np.where(verifies, self.batch_size, self.tokens), np.where(verifies, self.new_tokens, 1.0)

    @property
    def remaining_tokens(self) -> Count:
        """Cached tokens of one sequence that are left after eviction."""
        return kept_tokens(self.cached_tokens, self.kept)

    def keys(self, window: float = np.inf) -> Count:
        """Keys that an eager kernel multiplies for one sequence: min(cached, window - 1) + new."""
        cached = self.remaining_tokens if window == np.inf else np.minimum(self.remaining_tokens, window - 1.0)
        return cached + self.new_tokens

    def attended_pairs(self, window: float = np.inf) -> Count:
        """Query-key pairs of one sequence that the mask lets through.

        Causal: n c + n(n+1)/2.  A window of w: the i-th new token sees min(c + i, w) keys, itself included, so the
        first a = clip(w - c, 0, n) see all and the others w: a c + a(a+1)/2 + (n - a) w.
        """
        return self._or_tree_pairs(self._causal_pairs(window), self.remaining_tokens, window)

    def _or_tree_pairs(self, causal: Count, cached: Count, limit: Count) -> Count:
        """The `causal` pairs, or if attended_new_pairs is set, those and `cached` keys per new token.

        limit: most keys that a token sees.  Overestimates if only some tokens of a tree have reached the limit.
        """
        pairs, n = self.attended_new_pairs, self.new_tokens
        return causal if pairs is None else np.where(np.isnan(pairs), causal, np.minimum(n * cached + pairs, n * limit))

    def _causal_pairs(self, window: float) -> Count:
        n, c = self.new_tokens, self.remaining_tokens
        if window == np.inf:
            return n * c + n * (n + 1.0) * 0.5
        a = np.clip(window - c, 0.0, n)
        return a * c + a * (a + 1.0) * 0.5 + (n - a) * window

    def chunked_pairs(self, chunk: float) -> Count:
        """Pairs of one sequence if tokens see only their chunk (Llama 4): sum of (position mod chunk) + 1.

        New tokens in a chunk that is partly cached do not see its evicted tokens.
        """

        def pairs_up_to(position: Count) -> Count:
            whole, rest = np.divmod(position, chunk)
            return whole * (chunk * (chunk + 1.0) * 0.5) + rest * (rest + 1.0) * 0.5

        pairs = pairs_up_to(self.cached_tokens + self.new_tokens) - pairs_up_to(self.cached_tokens)
        partial = np.mod(self.cached_tokens, chunk)
        kept = kept_tokens(partial, self.kept)
        if self.kept != 1.0:
            pairs = pairs - np.minimum(self.new_tokens, chunk - partial) * (partial - kept)
        return self._or_tree_pairs(pairs, kept, chunk)

    def entries(self, rate: float) -> Count:
        """Compressed entries of one sequence, one for every `rate` tokens (DeepSeek-V4); 0 if rate is 0."""
        return np.floor((self.remaining_tokens + self.new_tokens) / rate) if rate else 0.0

    def entry_pairs(self, rate: float, most: float = np.inf) -> Count:
        """Pairs of new tokens and entries that end at or before them, at most `most` per token.

        The token at position p sees floor(p / r) entries; the sum of floor(p / r) over p = 0 ... P is
        r k (k - 1) / 2 + k (P - r k + 1) with k = floor(P / r).
        """

        def up_to(position: Count) -> Count:
            last = np.minimum(position, most * rate - 1.0)
            whole = np.floor(last / rate)
            beyond = 0.0 if most == np.inf else most * (position - last)
            return rate * whole * (whole - 1.0) * 0.5 + whole * (last - rate * whole + 1.0) + beyond

        return up_to(self.remaining_tokens + self.new_tokens) - up_to(self.remaining_tokens)

    def chunked_keys(self, chunk: float) -> Count:
        """Keys that a new token can see with chunks: the cached part of the current chunk, and the new tokens."""
        return kept_tokens(np.remainder(self.cached_tokens, chunk), self.kept) + self.new_tokens


#: Fields of Group, and most passes of a step that has a key.
GROUP_FIELDS, MOST_KEYED = tuple(entry.name for entry in fields(Group)), 1024


@frozen(kw_only=False, eq=False)
class Step:
    """One forward pass: weights are read once for all groups; attention is summed over groups."""

    groups: tuple[Group, ...]
    tokens: Count = field(init=False)
    logits: Count = field(init=False)
    sequences: Count = field(init=False)

    def __post_init__(self) -> None:
        first, *others = self.groups
        tokens, logits, sequences = first.tokens, first.batch_size * first.logit_positions, first.batch_size
        for group in others:
            tokens = tokens + group.tokens
            logits = logits + group.batch_size * group.logit_positions
            sequences = sequences + group.batch_size
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "sequences", sequences)

    @property
    def key(self) -> Hashable | None:
        """Equal for steps of the same numbers; None for many passes, and for numbers that are being recorded."""
        found: list[Hashable] = []
        for value in (getattr(group, name) for group in self.groups for name in GROUP_FIELDS):
            if type(value) is np.ndarray and value.size <= MOST_KEYED:
                found.append((value.shape, value.dtype, value.tobytes()))
            elif value is None or isinstance(value, (int, float)):
                found.append(value)
            else:
                return None
        return tuple(found)

    @property
    def longest(self) -> Count:
        """Tokens of the longest sequence, those of this pass included."""
        lengths = [group.cached_tokens + group.new_tokens for group in self.groups]
        return reduce(np.maximum, lengths)


def _step(batch_size: Count, new_tokens: Count, cached_tokens: Count, logit_positions: Count) -> Step:
    group = Group(
        batch_size=batch_size, new_tokens=new_tokens, cached_tokens=cached_tokens, logit_positions=logit_positions
    )
    return Step((group,))


def prefill(batch_size: Count, input_len: Count, cached_tokens: Count = 0.0) -> Step:
    """Whole prompts, with one row of logits each.  cached_tokens: prefix hit per prompt."""
    return _step(batch_size, input_len, cached_tokens, 1.0)


def decode(batch_size: Count, cached_tokens: Count) -> Step:
    """One new token for each sequence, with logits."""
    return _step(batch_size, 1.0, cached_tokens, 1.0)


def first_step(batch_size: Count, input_len: Count) -> Step:
    """The first pass of an encoder-decoder: the encoder over whole inputs, the decoder over one start token."""
    return after_input(_step(batch_size, 1.0, 0.0, 1.0), input_len)


def after_input(step: Step, input_len: Count) -> Step:
    """The step of a decoder beside an encoder's input of this length."""
    return Step(tuple(replace(group, input_len=input_len) for group in step.groups))


def verify(batch_size: Count, cached_tokens: Count, draft_tokens: Count) -> Step:
    """Verification of the draft tokens, after the last accepted token; logits for all of them."""
    return _step(batch_size, draft_tokens + 1.0, cached_tokens, draft_tokens + 1.0)


def chunk(batch_size: Count, new_tokens: Count, cached_tokens: Count) -> Step:
    """A chunk of a prompt that is not its last: no logits."""
    return _step(batch_size, new_tokens, cached_tokens, 0.0)


def mixed(*steps: Step) -> Step:
    """Several steps run as one forward pass (a Sarathi batch: one chunk and many decodes)."""
    return Step(tuple(group for step in steps for group in step.groups))


@frozen(eq=False)
class Request:
    """batch_size requests of input_len prompt tokens that each generate output_len tokens [counts or arrays]."""

    batch_size: Count
    input_len: Count
    output_len: Count
