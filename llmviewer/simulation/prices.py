"""What a replica must know of a configuration: the times of its forward passes, and the room of its KV cache."""

from __future__ import annotations

from typing import Protocol


class Prices(Protocol):
    """Times of forward passes [s]; `step_times.py` has them for a configuration.

    tokens_per_round: tokens that a sequence gains in a decode step, more than one with speculation.
    """

    tokens_per_round: float

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Time of a decode step over `context` cached tokens in total as a line: its value at 0 [s], its slope
        [s/token], and the context up to which it holds."""

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """A decode step with `tokens` prompt tokens that attend to `pairs` pairs; `prompts` prompts end in it."""


class Room(Protocol):
    """KV cache and limits of a replica; `cache_capacity.py` has them for a configuration.

    blocks of block_tokens tokens; sequence_blocks: for the state of a sequence besides its tokens.  max_sequences: that
    run at once.  token_budget: tokens of a step.
    """

    blocks: int
    block_tokens: int
    sequence_blocks: int
    max_sequences: int
    token_budget: int
