"""The figures of a configuration that a replica needs: times of forward passes, and room of the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Prices(Protocol):
    """Times of forward passes [s]; `step_times.py` has them for a configuration."""

    @property
    def tokens_per_round(self) -> float:
        """Tokens that a sequence gains in a decode step: more than one with speculation."""

    def decode_line(self, sequences: int, context: float) -> tuple[float, float, float]:
        """Time of a decode step over `context` cached tokens in total as a line: its value at 0 [s], its slope
        [s/token], and the context up to which it holds."""

    def shared_s(self, sequences: float, tokens: float) -> float:
        """The part of a step that works on the tokens of all ranks, where each has so many decoding sequences and
        prompt tokens."""

    def stages(self, sequences: int, tokens: int) -> Sequence[float]:
        """Shares of a step's time on each pipeline stage, with so many decoding sequences and prompt tokens."""

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """A decode step with `tokens` prompt tokens that attend to `pairs` pairs; `prompts` prompts end in it."""


class Room(Protocol):
    """KV cache and limits of a replica; `cache_capacity.py` has them for a configuration."""

    @property
    def blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""

    @property
    def sequence_blocks(self) -> int:
        """Blocks of the state of a sequence besides its tokens."""

    @property
    def max_sequences(self) -> int:
        """Most sequences that run at once."""

    @property
    def token_budget(self) -> int:
        """Most tokens of a step."""
