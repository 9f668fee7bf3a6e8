"""`--batching chunked`: every step takes a piece of a prompt beside the running decodes, up to a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.serving.batching import Batching, Facts, Replica, RequestTimes, Running, per_token
from llmviewer.techniques.batching.sharing import check_mixable, sharing
from llmviewer.techniques.technique import Change, Parameter, Technique, numbers

WHERE = "--batching chunked"
#: Tokens of a step unless said otherwise; Sarathi-Serve serves with 512 under strict limits on the time between tokens.
TOKENS = 512.0
#: What keeps a prompt of whole steps from a further one by rounding.
ROUNDED = 1.0 + 1e-12
BUDGET = Parameter(name="tokens", low=16, high=2.0**24, whole=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkPlan:
    """What steps hold in the steady state, per point.

    chunks: steps that a prompt takes; where steps are full, a part of one may be another prompt's.
    together: prompts of a mixed step where several fit it, else 1.
    mixed: of the steps in which a sequence decodes, those that hold others' prompts too.
    decodes: sequences that decode in a mixed step.  chunk_tokens: most prompt tokens of a mixed step.
    share: of all steps, those that are mixed.  filled: 1.0 where chunks of two prompts share a step.
    """

    chunks: Count
    together: Count
    mixed: Count
    decodes: Count
    chunk_tokens: Count
    share: Count
    filled: Count


def plan(running: Count, prompt: Count, steps: Count, budget: Count) -> ChunkPlan:
    """A steps, each up to `budget` tokens: the decodes of A running sequences first, what is left for prompts.

    A prompt of S tokens takes k steps, an answer n.  While nobody waits one sequence alone is in its prompt: the other
    A - 1 decode beside it, a step holds budget - (A - 1) tokens of the prompt, and of the n + k steps of a sequence's
    cycle A k are mixed.  Where A k > n + k every step is mixed, and a chunk shares its step with the next prompt's
    first: a cycle of n + k steps takes A prompts, (n + k) / A steps each, but no step more tokens than the budget, so
    that a prompt and its answer take (S + n) / budget at least, and prompts queue.
    """
    room = budget - (running - 1.0)
    alone = np.where(room > 0.0, np.ceil(prompt / np.maximum(room, 1.0)), 1.0)
    apart = (room > 0.0) & (running * alone <= steps + alone)
    each = np.where(apart, alone, np.maximum((steps + alone) / running, (prompt + steps) / budget))
    chunks, together = np.maximum(each, 1.0), np.maximum(1.0 / each, 1.0)
    others = np.maximum(running - together, 0.0) / together * chunks
    mixed = np.where(apart, others, steps)
    part = np.where(apart, room, prompt / chunks * ROUNDED)
    return ChunkPlan(
        chunks=chunks,
        together=together,
        mixed=mixed,
        decodes=mixed * together / chunks,
        chunk_tokens=np.where(chunks > 1.0, part, prompt * together),
        share=np.minimum((others + chunks) / (steps + chunks), 1.0),
        filled=np.where(apart | (chunks == 1.0), 0.0, 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixing(Running):
    """Running sequences, and what their steps hold.  budget: tokens of a step."""

    plan: ChunkPlan
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkedTimes(RequestTimes):
    """prefill_s: the mixed steps in which a prompt is prefilled, decodes beside it included."""

    mixing: Mixing

    @property
    def others_s(self) -> Array:
        """Mixed steps between the tokens of a sequence, all of them together [s]."""
        plan = self.mixing.plan
        return np.asarray(self.prefill_s * (plan.mixed / plan.chunks))

    @property
    def waiting_s(self) -> Array:
        """For the prompts before, where every step is mixed [s]."""
        prompts = np.maximum(self.running - self.together, 0.0) / self.together
        return np.maximum(self.prefill_s * prompts - self.others_s, 0.0)

    @property
    def cycle_s(self) -> Array:
        """From one request that a place of the cache takes to the next [s]."""
        return self.waiting_s + self.prefill_s + self.generation_s

    @property
    def ttft_s(self) -> Array:
        """Queue, the prompts before, and the steps of the own chunks [s]."""
        return self.queue_s + self.waiting_s + self.prefill_s

    @property
    def generation_s(self) -> Array:
        """Mixed steps and pure ones [s]."""
        pure = 1.0 - self.mixing.plan.mixed / np.maximum(self.steps, 1.0)
        return np.asarray(self.decode_s * pure + self.others_s)

    def facts(self) -> Facts:
        """Sizes in tokens and sequences, means where they change from step to step; shares; times [s]."""
        plan = self.mixing.plan
        return {
            "running": self.running,
            "token_budget": self.mixing.budget,
            "chunk_tokens": plan.chunk_tokens,
            "chunks": plan.chunks,
            "prompts_together": self.together,
            "decodes_in_mixed_step": plan.decodes,
            "mixed_share": plan.share,
            "mixed_step_s": self.prefill_s / plan.chunks,
            "decode_step_s": per_token(self.decode_s, self.steps),
            "queue_s": self.queue_s + self.waiting_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Batching):
    """Users as under continuous batching; every step decodes all running sequences, and takes a chunk of a prompt.

    tokens: of a step; 0: as the engine's budget, else TOKENS.
    """

    name: str = "chunked"
    tokens: float = 0.0

    def budget(self, asked: float, usual: float) -> float:
        """Tokens of a step."""
        if asked and self.tokens and asked != self.tokens:
            raise UserError(
                f"{WHERE},tokens={self.tokens:g} and --max-num-batched-tokens {asked:g} both say how many tokens a "
                "step has; leave out one"
            )
        return asked or self.tokens or (usual if np.isfinite(usual) else TOKENS)

    def admit(self, request: Request, machine: Replica) -> Running | None:
        """As many sequences as the cache holds, and what a mixed step holds of their prompts."""
        budget = self.budget(0.0, machine.token_budget)
        places = machine.places(request, budget)
        running = replace(request, batch_size=np.minimum(request.batch_size, places))
        found = plan(running.batch_size, machine.new_tokens(request), request.output_len - 1.0, budget)
        return Mixing(
            request=running,
            together=found.together,
            chunk_tokens=found.chunk_tokens,
            riders=found.decodes,
            filled=found.filled,
            plan=found,
            budget=budget,
        )

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Who waits for whom."""
        assert isinstance(running, Mixing)
        return Batching.times(self, passes, running, users).knowing(ChunkedTimes, mixing=running)


def _make(text: str) -> Change:
    tokens = numbers(WHERE, text, (BUDGET,))["tokens"] if text else 0.0

    def change(system: System) -> System:
        check_mixable("chunked", system)
        return sharing(Chunked(tokens=tokens))(system)

    return change


TECHNIQUE = Technique(
    name="chunked",
    kind="batching",
    summary="Continuous batching in steps of so many tokens: all running decodes and one chunk of a prompt "
    "(Sarathi, FastGen's split-and-fuse).",
    parameters={
        "tokens": "tokens of a step; --max-num-batched-tokens, else the engine's budget, else 512 unless said",
    },
    formula="chunk = tokens - decodes; k = ceil(S / chunk) steps a prompt, n steps an answer; of A running sequences "
    "A k / (n + k) of the steps are mixed; where that is above 1 all are, and chunks of two prompts share a step: "
    "k = max((n + k) / A, (S + n) / tokens), and prompts queue where steps are full; each chunk reads the "
    "keys of those before; TTFT = k mixed steps, TPOT = ((A - 1) k mixed + the rest pure steps) / n",
    source="Sarathi arXiv 2308.16369, Sarathi-Serve arXiv 2403.02310; DeepSpeed-FastGen arXiv 2401.08671",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 16 --batching chunked,tokens=512",
    make=_make,
)
