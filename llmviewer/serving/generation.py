"""How forward passes produce output tokens: one per pass, or rounds of drafting and one verification pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count, total
from llmviewer.core.frozen import frozen
from llmviewer.models.model import Model
from llmviewer.serving.branches import Branches, Columns, Steps

#: Share of a vocabulary that may be padding (Qwen2.5: 151,936 tokens in small models, 152,064 in large ones).
PADDING = 0.01


class Cached(Enum):
    """Tokens whose keys and values are kept from pass to pass of a block.

    NONE: none; every pass computes prompt and answer.  PREFIX: prompt and finished blocks; DUAL: these and the masked
    blocks after the current one; both are computed anew in the first pass of every block.  BLOCKS: as PREFIX, but for
    good and without masked blocks after the current one, as blocks attend only to earlier ones.
    """

    NONE = "none"
    PREFIX = "prefix"
    DUAL = "dual"
    BLOCKS = "blocks"


@frozen
class Denoising:
    """An answer of n tokens in blocks, each decided in `steps` passes, a mean; all tokens of a pass see each other.

    block: tokens of a block; infinite for the whole answer.  A shorter last block takes its share of the passes, at
    least one.  With blocks that are kept for good one more pass, over the decided tokens, stores each but the last.
    """

    block: float
    steps: float
    cached: Cached

    @property
    def whole(self) -> bool:
        """Whether the first pass is over prompt and answer together, and decides the first tokens."""
        return self.cached is not Cached.BLOCKS

    def first_pass(self, request: Columns) -> tuple[Array, ...]:
        """Columns (batch, new, cached, logits, repeats) of the pass over prompt and answer, one per point."""
        batch, prompt, output = request
        one = np.ones(len(batch))
        return batch, prompt + output, 0.0 * one, np.minimum(self.block, output), one

    def shown(self, request: Columns) -> tuple[Array, Array, Array]:
        """New tokens, cached tokens and logits of a pass of the first block that is not its first, one per point."""
        _, prompt, output = request
        block = np.minimum(self.block, output)
        return *self._inner(prompt, prompt + output, block), block

    def steps_of(self, request: Columns) -> Steps:
        """All passes after the first one of prompt and answer, or after the prompt's prefill: two entries per block."""
        batch, prompt, output = request
        block = np.minimum(self.block, output)
        counts = np.ceil(output / block)
        owner = np.repeat(np.arange(len(batch)), counts.astype(int))
        number = np.arange(float(len(owner))) - np.repeat(np.cumsum(counts) - counts, counts.astype(int))
        start, end = prompt[owner] + number * block[owner], (prompt + output)[owner]
        tokens = np.minimum(block[owner], end - start)
        first, last = number == 0.0, number == counts[owner] - 1.0
        pairs = self._passes_of_a_block((start, end, tokens), np.where(first, 0.0, 1.0), np.where(last, 0.0, 1.0))
        new, cached, repeats = (np.stack(values, axis=1).reshape(-1) for values in zip(*pairs, strict=True))
        return Steps(
            batch_size=np.repeat(batch[owner], 2),
            new_tokens=new,
            cached_tokens=cached,
            logit_positions=np.repeat(tokens, 2),
            repeats=repeats,
            counts=2.0 * counts,
        )

    def _passes_of_a_block(
        self, block: tuple[Array, Array, Array], not_first: Array, not_last: Array
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
        """New tokens, cached tokens and repeats of the two kinds of passes of a block.

        block: start, end of the answer, tokens.  not_first, not_last: 0.0 for the first or the last block, else 1.0.
        """
        start, end, tokens = block
        share = np.minimum(tokens / self.block, 1.0) if np.isfinite(self.block) else np.ones(len(tokens))
        passes = np.maximum(self.steps * share, 1.0)
        new, kept = self._inner(start, end, tokens)
        if self.whole:
            return (end, 0.0 * end, not_first), (new, kept, passes - 1.0)
        return (new, kept, passes), (new, kept, not_last)

    def cached_tokens(self, context: Count) -> Count:
        """Tokens of a sequence that are stored from pass to pass, of `context` tokens of prompt and answer."""
        return 0.0 * context if self.cached is Cached.NONE else context

    def _inner(self, start: Array, end: Array, tokens: Array) -> tuple[Array, Array]:
        """New and cached tokens of a pass within a block of `tokens` from `start`.  end: of the answer."""
        if self.cached is Cached.NONE:
            return end, 0.0 * end
        if self.cached is Cached.PREFIX:
            return end - start, start
        return tokens, end - tokens if self.cached is Cached.DUAL else start


@frozen(eq=False)
class PassShape:
    """Shape of a decode pass, per sequence [counts, scalars or one per point].

    attended_new_pairs: query-key pairs among the new tokens; None for causal, a tree has its own number.
    ahead: tokens by which the context exceeds that of the round's first pass; the mean over several passes.
    """

    new_tokens: Count = 1.0
    logit_positions: Count = 1.0
    attended_new_pairs: Count | None = None
    ahead: Count = 0.0


#: One new token per sequence.
ONE_TOKEN = PassShape()


@frozen(eq=False)
class Draft:
    """A draft model: `passes` passes of `shape` in a round.

    caches: it has a KV cache, which a prompt has to fill; without one it drafts from the target's states.
    shared: names of its weights that the target or another draft already stores; None: all of them.
    techniques: its own technique options.  It inherits engine options from the target, and options that change the
    checkpoint only if it has the same_weights.
    """

    name: str
    model: Model
    passes: Count = 1.0
    shape: PassShape = ONE_TOKEN
    caches: bool = True
    shared: tuple[str, ...] | None = ()
    same_weights: bool = False
    techniques: Mapping[str, str] = field(default_factory=dict)


@frozen(eq=False)
class Generation:
    """One round: draft passes, then one pass of the target.

    tokens: expected output tokens of a round, bonus token included.
    extra_s: time of a round outside kernels [s].  facts: figures for the result, by name.
    branches: an outline and parallel sequences; each runs in rounds of its own.
    denoising: blocks of tokens that are decided together, instead of rounds.
    min_spare_tokens: minimum cache tokens that a sequence needs beyond prompt and output.
    """

    shape: PassShape = ONE_TOKEN
    tokens: Count = 1.0
    drafts: tuple[Draft, ...] = ()
    extra_s: Count = 0.0
    facts: Mapping[str, Count | str] = field(default_factory=dict)
    branches: Branches | None = None
    denoising: Denoising | None = None
    min_spare_tokens: Count = 0.0

    @property
    def spare_tokens(self) -> Count:
        """Cache tokens that a sequence needs beyond prompt and output, as all draft tokens may be rejected."""
        return np.maximum(self.shape.new_tokens - 1.0, self.min_spare_tokens)

    @property
    def counts_passes(self) -> bool:
        """Whether an answer takes a number of passes of its own, instead of rounds that may start at any token."""
        return self.branches is not None or self.denoising is not None

    @property
    def verifies(self) -> Count:
        """1.0 where a round verifies draft tokens, 0.0 where it is a plain decode step."""
        return np.minimum(np.maximum(self.shape.new_tokens - 1.0, 0.0), 1.0)

    def per_token(self, own: Array, drafts: Sequence[Array], extra: Count = 0.0) -> Array:
        """Cost of an output token: the target's pass, all draft passes and `extra`, over the tokens of a round.

        own, drafts: cost of one pass each.
        """
        if self is AUTOREGRESSIVE:
            return own
        passes = total(draft.passes * each for draft, each in zip(self.drafts, drafts, strict=True))
        return (own + passes + extra) / self.tokens

    def at_points(self, points: npt.NDArray[np.intp]) -> Generation:
        """The generation of selected points, where counts have one entry per point."""

        def pick(counts: Sequence[Count]) -> Count:
            (count,) = counts
            return count[points] if isinstance(count, np.ndarray) and count.size > 1 else count

        selected: Generation = _merged([self], pick)
        return selected


#: One token per pass, without drafts.
AUTOREGRESSIVE = Generation()


@frozen(eq=False)
class GenerationScheme:
    """A generation method, requested before the model is known.  name: as in results.

    candidates: schemes that differ only in counts, of which every point uses the fastest.
    alone: why it cannot be combined with branches, chunks of prompts and separate instances; "" if it can.
    """

    name: str
    make: Callable[[Model], Generation]
    candidates: tuple[GenerationScheme, ...] = ()
    alone: str = ""

    def changed(self, title: str, change: Callable[[Generation], Generation]) -> GenerationScheme:
        """The scheme whose generations are changed, listed under both names."""
        return GenerationScheme(
            name=f"{self.name} + {title}",
            make=lambda model: change(self.make(model)),
            candidates=tuple(one.changed(title, change) for one in self.candidates),
        )


def select_generation(candidates: Sequence[Generation], index: npt.NDArray[np.intp]) -> Generation:
    """The generation that `index` selects for each point; all of them differ only in counts."""

    def pick(counts: Sequence[Count]) -> Count:
        columns = np.broadcast_arrays(*(np.asarray(count, dtype=np.float64) for count in (*counts, index)))[:-1]
        return np.choose(index, columns) if len(index) > 1 else float(columns[int(index[0])].reshape(-1)[0])

    chosen: Generation = _merged(candidates, pick)
    return chosen


def _merged(values: Sequence[Any], merge: Callable[[Sequence[Count]], Count]) -> Any:
    """One value from several that differ only in counts, with `merge` applied to each count."""
    first = values[0]
    if isinstance(first, (float, np.ndarray)):
        return merge(values)
    if isinstance(first, (Generation, PassShape, Draft)):
        names = [entry.name for entry in fields(first)]
        return replace(first, **{name: _merged([getattr(value, name) for value in values], merge) for name in names})
    if isinstance(first, tuple):
        return tuple(_merged(column, merge) for column in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {name: _merged([value[name] for value in values], merge) for name in first}
    return first


def vocabulary_notes(generations: Iterable[Generation], target: Model) -> tuple[str, ...]:
    """Warnings that the tokens of a draft model are not those of its target, which verification compares.

    Vocabularies of one tokenizer may be padded differently.
    """
    own = _vocabulary(target)
    drafts = {draft.name: _vocabulary(draft.model) for generation in generations for draft in generation.drafts}
    return tuple(
        f"draft {name} has {size:,.0f} tokens, its target {own:,.0f}: engines verify drafts of one vocabulary only"
        for name, size in drafts.items()
        if own and size and abs(size - own) > PADDING * own
    )


def _vocabulary(model: Model) -> float:
    """The number of tokens that a model predicts; 0 without a head."""
    head = getattr(model.head, "lm_head", None)
    return float(head.out_features) if head else 0.0
