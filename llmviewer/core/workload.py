"""What one forward pass is asked to do: prefill, decode, chunks and mixed batches differ only in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Count

#: Fields of Group that a schedule gives a value for every pass.
PASS_COLUMNS = ("batch_size", "new_tokens", "cached_tokens", "logit_positions")


def whole_tokens(count: Count) -> Count:
    """The whole tokens in a count; what falls short of one by a rounding error (0.29 x 100) is one."""
    whole: Count = np.floor(np.round(count, 6))
    return whole


def kept_tokens(cached: Count, kept: float) -> Count:
    """Whole tokens that are left of `cached` ones where eviction keeps this share of them, one at least."""
    return cached if kept == 1.0 else np.minimum(cached, np.maximum(whole_tokens(cached * kept), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Sequences that do the same in one forward pass [counts, scalars or arrays].

    batch_size sequences, each with new_tokens on top of cached_tokens, asking for logit_positions rows of logits.
    attended_new_pairs: query-key pairs among the new tokens; None, and NaN in an array, is causal, n(n+1)/2; a tree or
    a lookahead mask gives its own number.  kept: the share of the cached tokens that eviction has left; the others are
    not read.
    """

    batch_size: Count
    new_tokens: Count
    cached_tokens: Count
    logit_positions: Count
    attended_new_pairs: Count | None = None
    kept: float = 1.0

    def some(self, passes: slice | npt.NDArray[np.intp]) -> Group:
        """The group in some of its passes: a slice or indices of its array columns."""
        taken = {name: np.asarray(getattr(self, name))[passes] for name in PASS_COLUMNS}
        pairs = self.attended_new_pairs
        if isinstance(pairs, np.ndarray) and pairs.size > 1:
            taken["attended_new_pairs"] = pairs[passes]
        return replace(self, **taken)  # type: ignore[arg-type]

    @property
    def tokens(self) -> Count:
        """New tokens of all its sequences."""
        return self.batch_size * self.new_tokens

    @property
    def states(self) -> Count:
        """Recurrent states that its sequences are left with: the last, and where all tokens ask for logits, as those
        that a verification may reject do, the one after each."""
        return self.batch_size * np.where(self.logit_positions < self.new_tokens, 1.0, self.new_tokens)

    @property
    def held(self) -> Count:
        """Cached tokens that are still there to attend to."""
        return kept_tokens(self.cached_tokens, self.kept)

    def keys(self, window: float = np.inf) -> Count:
        """Keys an eager kernel multiplies for one sequence: min(cached, window - 1) + new."""
        cached = self.held if window == np.inf else np.minimum(self.held, window - 1.0)
        return cached + self.new_tokens

    def attended_pairs(self, window: float = np.inf) -> Count:
        """Query-key pairs the mask lets through, for one sequence.

        Causal: n c + n(n+1)/2.  A window of w: the i-th new token sees min(c + i, w) keys, itself included, so the
        first a = clip(w - c, 0, n) see all and the others w: a c + a(a+1)/2 + (n - a) w.
        """
        return self._unless_own(self._causal_pairs(window), self.held, window)

    def _unless_own(self, causal: Count, before: Count, most: Count) -> Count:
        """Causal pairs; where new tokens have pairs of their own those, and for each the cached tokens `before` them.

        most: keys that a token sees at most.  Where some of a tree's tokens have reached it and others not, too many.
        """
        own, n = self.attended_new_pairs, self.new_tokens
        return causal if own is None else np.where(np.isnan(own), causal, np.minimum(n * before + own, n * most))

    def _causal_pairs(self, window: float) -> Count:
        n, c = self.new_tokens, self.held
        if window == np.inf:
            return n * c + n * (n + 1.0) * 0.5
        a = np.clip(window - c, 0.0, n)
        return a * c + a * (a + 1.0) * 0.5 + (n - a) * window

    def chunked_pairs(self, chunk: float) -> Count:
        """Pairs when a token sees only its own chunk of `chunk` tokens (Llama 4): sum of (position mod chunk) + 1.

        The new tokens of a chunk that is already begun miss those of its tokens that were evicted.
        """

        def before(position: Count) -> Count:
            whole, rest = np.divmod(position, chunk)
            return whole * (chunk * (chunk + 1.0) * 0.5) + rest * (rest + 1.0) * 0.5

        pairs = before(self.cached_tokens + self.new_tokens) - before(self.cached_tokens)
        begun = np.mod(self.cached_tokens, chunk)
        kept = kept_tokens(begun, self.kept)
        if self.kept != 1.0:
            pairs = pairs - np.minimum(self.new_tokens, chunk - begun) * (begun - kept)
        return self._unless_own(pairs, kept, chunk)

    def chunked_keys(self, chunk: float) -> Count:
        """Keys that some new token sees then: what is left of the begun chunk, cached mod chunk, and the new."""
        return kept_tokens(np.remainder(self.cached_tokens, chunk), self.kept) + self.new_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward pass: weights are read once over all tokens of all groups; attention is summed over groups."""

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


def _step(batch_size: Count, new_tokens: Count, cached_tokens: Count, logit_positions: Count) -> Step:
    group = Group(
        batch_size=batch_size, new_tokens=new_tokens, cached_tokens=cached_tokens, logit_positions=logit_positions
    )
    return Step((group,))


def prefill(batch_size: Count, input_len: Count, cached_tokens: Count = 0.0) -> Step:
    """Whole prompts together; one row of logits each.  cached_tokens: a prefix found in the cache."""
    return _step(batch_size, input_len, cached_tokens, 1.0)


def decode(batch_size: Count, cached_tokens: Count) -> Step:
    """One new token for each sequence."""
    return _step(batch_size, 1.0, cached_tokens, 1.0)


def verify(batch_size: Count, cached_tokens: Count, drafted: Count) -> Step:
    """The drafted tokens and the last accepted one, with logits for all."""
    return _step(batch_size, drafted + 1.0, cached_tokens, drafted + 1.0)


def chunk(batch_size: Count, new_tokens: Count, cached_tokens: Count) -> Step:
    """A piece of a prompt before its last one: no logits."""
    return _step(batch_size, new_tokens, cached_tokens, 0.0)


def mixed(*steps: Step) -> Step:
    """Several steps run as one forward pass (a Sarathi batch: one chunk and many decodes)."""
    return Step(tuple(group for step in steps for group in step.groups))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """batch_size requests of input_len prompt tokens that each generate output_len tokens [counts or arrays]."""

    batch_size: Count
    input_len: Count
    output_len: Count
