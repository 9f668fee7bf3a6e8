"""First token, time per token and whole request, of a static batch and under continuous batching."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmviewer.ir import Array, Count
from llmviewer.workload import Request

#: Prompt tokens whose pass is bound by compute on every accelerator: prompts shorter than this share a pass under
#: continuous batching, with each other or with decode steps, and pay for their tokens rather than for the weights.
SHARED_PASS_TOKENS = 1024.0


def together(request: Request) -> Count:
    """Prompts that share a pass under continuous batching."""
    prompts = np.floor(SHARED_PASS_TOKENS / np.maximum(request.input_len, 1.0))
    return np.clip(prompts, 1.0, np.maximum(request.batch_size, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """What passes take, and who waits for whom [s], one entry per point.

    prefill_s: of all prompts that are prefilled together.  decode_s: of all decode steps of a sequence.
    steps: how many those are.  users: sequences that are to be served at once; running: those that the cache holds.
    together: prompts of prefill_s.  interference: as of an engine.
    """

    prefill_s: Array
    decode_s: Array
    steps: Array
    users: Count = 1.0
    running: Count = 1.0
    together: Count = 1.0
    interference: float = 0.0

    @property
    def others_s(self) -> Array:
        """Prefill of the other running sequences: each of them begins a request while one of ours is answered."""
        return np.asarray(self.prefill_s / self.together * np.maximum(self.running - self.together, 0.0))

    @property
    def _cycle_s(self) -> Array:
        return self.prefill_s + self.others_s + self.decode_s

    @property
    def queue_s(self) -> Array:
        """Waiting until the cache has room: a place is free once a cycle, and users share the places."""
        return np.asarray((np.maximum(self.users / self.running, 1.0) - 1.0) * self._cycle_s)

    @property
    def ttft_s(self) -> Array:
        """Queue, the share of the others' prefill that comes first, and the own."""
        return self.queue_s + (1.0 - self.interference) * self.others_s + self.prefill_s

    @property
    def generation_s(self) -> Array:
        """From the first token to the last: decode steps, and the others' prefill between them."""
        between = np.where(self.steps > 0, self.interference * self.others_s, 0.0)
        return np.asarray(self.decode_s + between)

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first; NaN where there is one alone."""
        return per_token(self.generation_s, self.steps)


def per_token(generation_s: Array, steps: Array) -> Array:
    """Mean over decode steps; NaN where there is none."""
    return np.where(steps > 0, generation_s / np.maximum(steps, 1.0), np.nan)
