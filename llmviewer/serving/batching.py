"""How sequences share a machine: who waits for whom, and what that makes of first token, time per token and request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.workload import Request, Step

#: What a result says of a batching: name with its unit -> counts per point, or a word each.
Facts: TypeAlias = Mapping[str, Count | Sequence[str]]
Kind = TypeVar("Kind", bound="RequestTimes")

#: Prompt tokens whose pass is bound by compute on every accelerator: prompts shorter than this share a pass under
#: continuous batching, with each other or with decode steps, and pay for their tokens rather than for the weights.
SHARED_PASS_TOKENS = 1024.0


def together(request: Request) -> Count:
    """Prompts that share a pass where each begins when another ends."""
    prompts = np.floor(SHARED_PASS_TOKENS / np.maximum(request.input_len, 1.0))
    return np.clip(prompts, 1.0, np.maximum(request.batch_size, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTimes:
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
    def cycle_s(self) -> Array:
        """From one request that a place of the cache takes to the next."""
        return self.prefill_s + self.others_s + self.decode_s

    @property
    def queue_s(self) -> Array:
        """Waiting until the cache has room: a place is free once a cycle, and users share the places."""
        return np.asarray((np.maximum(self.users / self.running, 1.0) - 1.0) * self.cycle_s)

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

    def knowing(self, kind: type[Kind], **more: Any) -> Kind:
        """The same, of a kind that knows more."""
        return kind(**{entry.name: getattr(self, entry.name) for entry in fields(RequestTimes)}, **more)

    def facts(self) -> Facts:
        """What a result says of them, by name with its unit; words one per point."""
        return {
            "running": self.running,
            "prompts_together": self.together,
            "others_prefill_s": self.others_s,
            "queue_s": self.queue_s,
        }


def per_token(generation_s: Array, steps: Array) -> Array:
    """Mean over decode steps; NaN where there is none."""
    return np.where(steps > 0, generation_s / np.maximum(steps, 1.0), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """What a batching may ask of the system that it shares out; all of one replica [counts per point, s, byte].

    places: sequences of a request whose cache fits at once, beside passes of at most so many tokens.
    prefill_s: of so many prompts of a request together.  step_s: of a forward pass.
    prompt_bytes: cache of one prompt on each device.  new_tokens: of each prompt, those not found in the cache.
    token_budget: most tokens of a prefill pass.
    """

    places: Callable[[Request, Count], Count]
    prefill_s: Callable[[Request], Array]
    step_s: Callable[[Step], Count]
    prompt_bytes: Callable[[Request], Count]
    new_tokens: Callable[[Request], Count]
    token_budget: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Running:
    """What runs at once on one replica, where sequences begin one by one.

    request: the sequences that decode together.  together: prompts of a prefill pass.
    chunk_tokens: most tokens of a prompt in a pass, where it differs from the engine's budget.
    riders: sequences that decode in every prefill pass.  filled: 1.0 where the last of a prompt's passes is filled up
    with tokens of the next prompt.
    """

    request: Request
    together: Count
    chunk_tokens: Count | None = None
    riders: Count = 0.0
    filled: Count = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How sequences share a machine; this one: all prompts are prefilled together, and all sequences end together.

    name: its word.
    """

    name: str = "static"

    def lasting(self, request: Request) -> Request:
        """The request, its output as long as its sequences hold their slots."""
        return request

    def budget(self, asked: float, usual: float) -> float:
        """Most tokens of a pass that holds prompts.  asked: 0, or what the user says; usual: what the engine does."""
        return asked or usual

    def admit(self, request: Request, machine: Replica) -> Running | None:
        """What runs at once of what is asked of a replica; None: the batch, from start to end."""
        return None

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Who waits for whom.  passes: what they take alone; users: of a replica."""
        return replace(passes, users=users, running=running.request.batch_size, together=running.together)

    def facts(self, request: Request) -> Facts:
        """What a result says of a batch from start to end."""
        return {}


#: A batch from start to end.
STATIC = Batching()
