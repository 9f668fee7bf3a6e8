"""Passes that decide many tokens of a block at once: diffusion language models, non-autoregressive decoders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.serving.branches import Columns, Steps


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
