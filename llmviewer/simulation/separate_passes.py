"""Steps with prompts and decodes, priced as presets of engines were fitted: one pass after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from llmviewer.simulation.step_times import StepTimes

#: Passes of prompts whose times are kept, as many prompts are of one length.
KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparatePasses:
    """Step times of which a step with prompts takes as long as a pass of its prompts and a decode step.

    `analyze --batching continuous` adds these times, and the constants of presets were fitted to it, so they contain
    what an engine gains by mixing both in one pass.  Where users ask for `--batching chunked`, a mixed step has its own
    price.
    """

    tokens_per_round: float
    decode_line: Callable[[int, float], tuple[float, float, float]]
    together_s: Callable[[int, float, int, float, int], float]

    @staticmethod
    def of(times: StepTimes) -> SeparatePasses:
        """The separate passes of these step times."""
        return SeparatePasses(
            tokens_per_round=times.tokens_per_round,
            decode_line=times.decode_line,
            together_s=lru_cache(KEPT)(times.mixed_s),
        )

    def mixed_s(self, sequences: int, context: float, tokens: int, pairs: float, prompts: int) -> float:
        """A pass of `tokens` prompt tokens, and a decode step where sequences decode [s]."""
        seconds = self.together_s(0, 0.0, tokens, pairs, prompts)
        if sequences:
            base, slope, _ = self.decode_line(sequences, context)
            seconds += base + slope * context
        return seconds
