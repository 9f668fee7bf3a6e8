"""How sequences share a replica: waiting times, and the resulting TTFT, TPOT and end-to-end latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Request

#: Figures of a batching in a result: name with unit -> counts per point, or a word per point.
BatchingFacts: TypeAlias = Mapping[str, Count | Sequence[str]]
Times = TypeVar("Times", bound="RequestTimes")

#: Prompt tokens for which a pass is compute-bound on every accelerator.  Under continuous batching shorter prompts
#: share a pass with each other or with decode steps, and cost compute for their tokens instead of reading the weights.
SHARED_PASS_TOKENS = 1024.0


def prompts_per_pass(request: Request) -> Count:
    """Prompts that share a prefill pass under continuous batching."""
    prompts = np.floor(SHARED_PASS_TOKENS / np.maximum(request.input_len, 1.0))
    return np.clip(prompts, 1.0, np.maximum(request.batch_size, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTimes:
    """Times of passes and waiting times of a request [s], one entry per point.

    prefill_s: all prompts that are prefilled together.  decode_s: all decode steps of a sequence.
    steps: number of decode steps.  users: sequences to serve concurrently; running: those whose KV cache fits.
    prompts_per_pass: number of prompts in prefill_s.  interference: of the engine.
    request_s: time of the host before the first token of a request, beside its passes.  next_s: time after which other
    prompts can follow those of prefill_s, shorter in a pipeline; None: prefill_s.
    """

    prefill_s: Array
    decode_s: Array
    steps: Array
    users: Count = 1.0
    running: Count = 1.0
    prompts_per_pass: Count = 1.0
    interference: float = 0.0
    request_s: float = 0.0
    next_s: Array | None = None

    @property
    def others_s(self) -> Array:
        """Prefill of the other running sequences [s]: each starts one request during one of ours."""
        next_s = self.prefill_s if self.next_s is None else self.next_s
        return np.asarray(next_s / self.prompts_per_pass * np.maximum(self.running - self.prompts_per_pass, 0.0))

    @property
    def cycle_s(self) -> Array:
        """Time between the starts of two requests in the same cache slot [s]."""
        return self.prefill_s + self.others_s + self.decode_s

    @property
    def queue_s(self) -> Array:
        """Waiting time for a cache slot [s]: each becomes free once per cycle, and users share the slots."""
        return np.asarray((np.maximum(self.users / self.running, 1.0) - 1.0) * self.cycle_s)

    @property
    def ttft_s(self) -> Array:
        """Queue, the part of others' prefill that runs before it, its own prefill, and its host time [s].

        Without tokens after the first there is no time between them in which others' prefill could run.
        """
        before = np.where(self.steps > 0, 1.0 - self.interference, 1.0)
        return np.asarray(self.queue_s + before * self.others_s + self.prefill_s + self.request_s)

    @property
    def generation_s(self) -> Array:
        """Time from the first token to the last [s]: decode steps, and others' prefill between them."""
        between = np.where(self.steps > 0, self.interference * self.others_s, 0.0)
        return np.asarray(self.decode_s + between)

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first [s]; NaN where output_len is 1."""
        return per_token(self.generation_s, self.steps)

    def extended(self, kind: type[Times], **more: Any) -> Times:
        """These times as an instance of a subclass with further fields."""
        return kind(**{entry.name: getattr(self, entry.name) for entry in fields(RequestTimes)}, **more)

    def facts(self) -> BatchingFacts:
        """Figures for the result, by name with unit; lists of words have one per point."""
        return {
            "running": self.running,
            "prompts_together": self.prompts_per_pass,
            "others_prefill_s": self.others_s,
            "queue_s": self.queue_s,
        }


def per_token(generation_s: Array, steps: Array) -> Array:
    """Mean time per decode step [s]; NaN where there is none, or where the first pass decides all tokens."""
    return np.where((steps > 0) & (generation_s > 0.0), generation_s / np.maximum(steps, 1.0), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """Figures of one replica that a batching policy needs [counts per point, byte].

    max_sequences: sequences of a request whose KV cache fits, given the largest number of tokens of a pass.
    prompt_bytes: KV cache of one prompt on each device.  new_tokens: tokens of each prompt without its prefix hit.
    token_budget: most tokens of a prefill pass.  microbatches: parts of the running sequences, one per pipeline stage.
    verified_tokens: tokens of a sequence in a decode step; tokens_per_round: those that it keeps in expectation.
    """

    max_sequences: Callable[[Request, Count], Count]
    prompt_bytes: Callable[[Request], Count]
    new_tokens: Callable[[Request], Count]
    token_budget: float = np.inf
    microbatches: int = 1
    verified_tokens: Count = 1.0
    tokens_per_round: Count = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """Sequences that run concurrently on one replica and start one by one.

    request: the sequences that decode together.  prompts_per_pass: prompts of a prefill pass.
    chunk_tokens: most prompt tokens of a pass, if it differs from the engine's token budget.
    decodes: sequences that decode in every prefill pass.  filled: 1.0 where the last pass of a prompt is filled up with
    tokens of the next prompt.  mixed: prompts are prefilled in the steps of their micro-batch, chunk by chunk.
    """

    request: Request
    prompts_per_pass: Count
    chunk_tokens: Count | None = None
    decodes: Count = 0.0
    filled: Count = 0.0
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How sequences share a replica; this base class is static batching.

    name: value of the option.  fills_pipeline: sequences start one by one, so every pipeline stage has its own.
    """

    name: str = "static"
    fills_pipeline: ClassVar[bool] = False

    def padded(self, request: Request) -> Request:
        """The request, padded to the output length for which its sequences occupy their slots."""
        return request

    def budget(self, requested: float | None, default: float) -> float:
        """Most tokens of a pass with prompts.

        requested: by the user, 0 for all prompts together, None if not given; default: of the engine.
        """
        return default if requested is None else requested or np.inf

    def admit(self, request: Request, replica: Replica) -> Running | None:
        """Sequences that one replica runs concurrently; None for a static batch."""
        return None

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Request times with waiting for others.  passes: times of one request's passes; users: of one replica."""
        return replace(
            passes, users=users, running=running.request.batch_size, prompts_per_pass=running.prompts_per_pass
        )

    def facts(self, request: Request) -> BatchingFacts:
        """Figures of a static batch for the result."""
        return {}


#: All prompts are prefilled together, and all sequences end together.
STATIC = Batching()
