"""`--batching continuous` and `chunked`: sequences start one by one, and prompts run between or in decode steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.serving.batching import (
    MOST_BUSY,
    Batching,
    BatchingFacts,
    Replica,
    RequestTimes,
    Running,
    per_token,
)
from llmviewer.serving.scheduling import SCHEDULERS, USUAL
from llmviewer.techniques.batching.batching import check_mixable, with_batching
from llmviewer.techniques.technique import Change, Whole, technique

WHERE = "--batching chunked"
#: Default token budget per step; Sarathi-Serve uses 512 under strict limits on the time between tokens.
DEFAULT_TOKEN_BUDGET = 512.0
#: Prompts that come with a step, below which none ever shares it.
RARE = 1e-9
#: Keeps round-off from adding a step to a prompt that fills whole steps.
ROUND_OFF = 1.0 + 1e-12


@frozen(eq=False)
class ChunkPlan:
    """Steps in steady state, per point; a mixed step contains prompt tokens and decodes.

    chunks: steps per prompt, fractional if steps are shared.  prompts_per_pass: prompts per mixed step, at least 1.
    mixed: mixed steps among the decode steps of a sequence.  decodes: sequences that decode in a mixed step.
    chunk_tokens: most prompt tokens of a mixed step.  share: fraction of all steps that are mixed.
    filled: 1.0 if chunks of two prompts share a step, else 0.0.  busy: steps that prompts need, over those that pass.
    """

    chunks: Count
    prompts_per_pass: Count
    mixed: Count
    decodes: Count
    chunk_tokens: Count
    share: Count
    filled: Count
    busy: Count


def in_one_pass(running: Count, steps: Count) -> Count:
    """Mean number of prompts in a pass with any, where A users each start one in every n + 1 passes.

    The other A - 1 start at random, so that their prompts in a pass have a Poisson distribution of mean
    a = (A - 1) / (n + 1), which has a / (1 - exp(-a)) where it is not 0.
    """
    arriving = (running - 1.0) / (steps + 1.0)
    some = np.maximum(arriving, RARE)
    return np.where(arriving > RARE, some / -np.expm1(-some), 1.0)


def plan_chunks(
    running: Count, prompt: Count, steps: Count, budget: Count, verified: Count = 1.0, *, whole: bool = False
) -> ChunkPlan:
    """Steady state of steps with up to `budget` tokens: decodes of the running sequences first, then prompt tokens.

    verified: tokens of a decode, which are more than one where drafts are verified; steps are then rounds.
    whole: prompts that fit a step are not cut.

    A sequences run; a prompt of S tokens takes k steps, an answer n.  Without queueing one sequence at a time is in
    prefill: the other A - 1 decode, a step has room for budget - v (A - 1) prompt tokens, and A k of the n + k steps of
    a sequence's cycle are mixed.  If A k > n + k, every step is mixed and a prompt's last chunk shares its step with
    the next prompt's first: a cycle of n + k steps prefills A prompts in (n + k) / A steps each.  No step exceeds the
    budget, so a prompt and its answer take at least (S + v n) / budget steps, and prompts queue.
    """
    room = budget - (running - 1.0) * verified
    unshared = np.maximum(np.ceil(prompt / (budget if whole else np.maximum(room, 1.0))), 1.0)
    unshared = np.where(room > 0.0, unshared, 1.0)
    unsaturated = (room > 0.0) & (running * unshared <= steps + unshared)
    evenly, full = (steps + unshared) / running, (prompt + steps * verified) / budget
    steps_per_prompt = np.where(unsaturated, unshared, np.maximum(evenly, full))
    chunks, by_chance = np.maximum(steps_per_prompt, 1.0), (steps_per_prompt <= 1.0) & (unsaturated | (full < evenly))
    fitting = np.maximum(np.floor(room / prompt) if whole else room / prompt, 1.0)
    prompts_per_pass = np.where(
        by_chance,
        np.maximum(np.minimum(in_one_pass(running, steps), fitting), 1.0 / steps_per_prompt),
        np.maximum(1.0 / steps_per_prompt, 1.0),
    )
    others = np.maximum(running - prompts_per_pass, 0.0) / prompts_per_pass * chunks
    mixed = np.where(unsaturated | by_chance, others, steps)
    chunk_tokens = np.where(unsaturated, room, prompt / chunks * ROUND_OFF)
    return ChunkPlan(
        chunks=chunks,
        prompts_per_pass=prompts_per_pass,
        mixed=mixed,
        decodes=mixed * prompts_per_pass / chunks,
        chunk_tokens=np.where(chunks > 1.0, chunk_tokens, prompt * prompts_per_pass),
        share=np.minimum((others + chunks) / (steps + chunks), 1.0),
        filled=np.where(unsaturated | (chunks == 1.0), 0.0, 1.0),
        busy=np.minimum(full / evenly * (running - 1.0) / running, MOST_BUSY),
    )


@frozen(eq=False)
class ChunkedRunning(Running):
    """Running sequences and their chunk plan.

    budget: tokens of a step.  together: sequences of a micro-batch.  steps: decode steps of a sequence, or its rounds.
    """

    plan: ChunkPlan
    budget: float
    together: Count
    steps: Count


@frozen(eq=False)
class ChunkedTimes(RequestTimes):
    """Request times with chunked prefill.  prefill_s: all mixed steps of a prompt, including their decodes [s]."""

    chunked: ChunkedRunning

    @property
    def others_s(self) -> Array:
        """Time of the mixed steps between the tokens of a sequence [s]."""
        plan = self.chunked.plan
        return np.asarray(self.prefill_s * (plan.mixed / plan.chunks))

    @property
    def step_s(self) -> Array:
        """Time of a step without prompts [s]; 0 without any."""
        return np.where(self.steps > 0, self.decode_s / np.maximum(self.chunked.steps, 1.0), 0.0)

    @property
    def prompt_s(self) -> Array:
        """Time by which one prompt lengthens its steps [s]."""
        added = self.prefill_s - self.chunked.plan.chunks * self.step_s
        return np.asarray(np.maximum(added, 0.0) / self.prompts_per_pass)

    @property
    def arriving(self) -> Count:
        """Mean number of prompts, or of chunks of one, that a step computes."""
        plan = self.chunked.plan
        whole = self.chunked.together / (self.chunked.steps + plan.chunks)
        return np.where(plan.chunks > 1.0, plan.share, whole)

    @property
    def most_of_ranks(self) -> tuple[Count, Count]:
        """As of separate passes; of prompts of several steps, at most one chunk in a step."""
        by_chance = RequestTimes.most_of_ranks.__get__(self)
        several = self.chunked.plan.chunks > 1.0
        any_rank = 1.0 - np.power(1.0 - self.arriving, self.ranks)
        return np.where(several, any_rank, by_chance[0]), np.where(several, self.before_own(1.0), by_chance[1])

    @property
    def added_s(self) -> Array:
        """Time by which one more prompt lengthens its steps [s]."""
        return self.prompt_s

    @property
    def others(self) -> Count:
        """Other sequences of a micro-batch."""
        return np.maximum(self.chunked.together - 1.0, 0.0)

    @property
    def ending(self) -> Count:
        """Mean number of them that end with a step."""
        return self.others / (self.chunked.steps + self.chunked.plan.chunks)

    @property
    def met_s(self) -> Array:
        """Mean length of the step that a prompt meets which comes at any time [s].

        E[x^2] / E[x] of steps x = t + p N that follow each other, N arrivals in the step before.  Prompts of several
        steps run one after another: twice the wait in their queue (M/D/1), and a step.
        """
        busy, prompt_s = self.busy, self.prompt_s * self.alone
        shared = ((1.0 + busy) * self.step_s + busy * prompt_s) / (1.0 - np.square(busy))
        taken = np.minimum(self.others / self.cycle_s * self.prefill_s, MOST_BUSY)
        queued = self.step_s + taken * self.prefill_s / (1.0 - taken)
        return np.where(self.chunked.plan.chunks > 1.0, queued, shared)

    @property
    def rest_s(self) -> Array:
        """Rest of the step that a prompt meets when it comes [s], and of the prompts before it.

        Those of several steps run one after another, and sequences end with each of these steps: M/D/1 but for the
        share of steps in which a prompt begins.
        """
        plan = self.chunked.plan
        found = self.rest_after_step((plan.chunks - 1.0) * self.step_s, between=False)
        begun = np.where(plan.filled > 0.0, 1.0, 1.0 - 1.0 / plan.chunks)
        queued = begun * plan.busy * self.prefill_s / (2.0 * (1.0 - plan.busy))
        return found + np.where(plan.chunks > 1.0, queued, 0.0)

    @property
    def share_before(self) -> Count:
        """Share of the prompts that come with one's own which run before its end; those of several steps take turns."""
        return np.where(self.chunked.plan.chunks > 1.0, 0.5, 1.0)

    @property
    def most_ahead_s(self) -> Array:
        """Time that the others' prompts add to the steps of a sequence [s]; 0 where all prompts queue."""
        added = np.maximum(self.others_s - self.chunked.plan.mixed * self.step_s, 0.0) + self.waits_s
        return np.where(self.chunked.plan.busy < MOST_BUSY, added, 0.0)

    @property
    def waiting_s(self) -> Array:
        """Queueing time for the prompts ahead, if every step is mixed [s]."""
        together = self.chunked.together
        prompts = np.maximum(together - self.prompts_per_pass, 0.0) / self.prompts_per_pass
        return np.maximum(self.prefill_s * prompts - self.others_s, 0.0)

    @property
    def cycle_s(self) -> Array:
        """Time from one request to the next in the same slot of the KV cache [s]."""
        return self.waiting_s + self.prefill_s + self.between_s

    @property
    def ttft_s(self) -> Array:
        """Queueing time, the prompts ahead, the mixed steps of the request's own prompt, and its host time [s]."""
        before_s = self.queue_s + self.waiting_s + self.held[0] * self.step_s + self.ahead_s
        return np.asarray(before_s + self.prefill_s + self.own_wait_s + self.request_s)

    @property
    def between_s(self) -> Array:
        """Time of the pure decode steps and of the mixed steps of others in a cycle [s]."""
        pure = 1.0 - self.chunked.plan.mixed / np.maximum(self.chunked.steps, 1.0)
        return np.asarray(self.decode_s * pure + self.others_s + self.waits_s)

    @property
    def generation_s(self) -> Array:
        """Time from the first token to the last [s]."""
        return np.asarray(self.between_s - self.own_wait_s - self.ahead_s)

    def facts(self) -> BatchingFacts:
        """Sizes in tokens and sequences (means over steps), shares, and times [s]."""
        plan = self.chunked.plan
        return {
            "running": self.running,
            "others_prefill_s": np.maximum(self.others_s - plan.mixed * self.step_s, 0.0) + self.waits_s,
            "token_budget": self.chunked.budget,
            "chunk_tokens": plan.chunk_tokens,
            "chunks": plan.chunks,
            "prompts_together": self.prompts_per_pass,
            "decodes_in_mixed_step": plan.decodes,
            "mixed_share": plan.share,
            "mixed_step_s": self.prefill_s / plan.chunks,
            "decode_step_s": per_token(self.decode_s, self.chunked.steps * np.ones(len(self.steps))),
            "queue_s": self.queue_s + self.waiting_s,
            "burst_ttft_s": self.burst_s,
        }


@frozen
class Continuous(Batching):
    """Closed-loop users: each sends the next request when the last is answered.

    A of U users run, as many as the KV cache holds.  While one request is answered, each of the other A - 1 users
    starts one.  The scheduler of the engine says whether their prompts run in decode steps or between them, and whether
    they are cut.
    """

    name: str = "continuous"
    fills_pipeline: ClassVar[bool] = True

    def admit(self, request: Request, replica: Replica) -> Running | None:
        """Sequences that fit in the KV cache, and the passes of their prompts."""
        budget = self.budget(None, replica.step_tokens)
        of_pass = min(budget, replica.token_budget)
        places = replica.max_sequences(request, of_pass)
        running = replace(request, batch_size=np.minimum(request.batch_size, places))
        together = np.ceil(running.batch_size / np.minimum(running.batch_size, float(replica.microbatches)))
        steps, new = (request.output_len - 1.0) / replica.tokens_per_round, replica.new_tokens(request)
        mixes = replica.mixes and replica.scheduler.mixes
        whole = not (mixes and replica.scheduler.chunks and np.isfinite(budget))
        fitting = np.maximum((np.floor if whole else np.asarray)(budget / np.maximum(new, 1.0)), 1.0)
        if not mixes:
            prompts = np.clip(in_one_pass(running.batch_size, np.maximum(steps, 1.0) - 1.0), 1.0, running.batch_size)
            return Running(request=running, prompts_per_pass=np.minimum(prompts, fitting), most_prompts=fitting)
        plan = plan_chunks(together, new, steps, budget, replica.verified_tokens, whole=whole)
        decoding = plan.decodes * replica.verified_tokens
        passes = np.maximum(np.ceil((plan.chunk_tokens + decoding) / of_pass), 1.0) if of_pass < budget else 1.0
        return ChunkedRunning(
            request=running,
            prompts_per_pass=plan.prompts_per_pass,
            most_prompts=fitting,
            chunk_tokens=np.where(passes > 1.0, of_pass - decoding / passes, plan.chunk_tokens),
            decodes=plan.decodes,
            filled=plan.filled,
            mixed=True,
            prompt_steps=plan.chunks if of_pass < budget else None,
            plan=plan,
            budget=budget,
            together=together,
            steps=steps,
        )

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Times with queueing and the prompts of others."""
        shared = Batching.times(self, passes, running, users)
        return shared.extended(ChunkedTimes, chunked=running) if isinstance(running, ChunkedRunning) else shared


@frozen
class Chunked(Continuous):
    """Continuous batching in which every step decodes all running sequences and prefills a chunk of a prompt.

    tokens: token budget of a step; 0: the engine's budget, else DEFAULT_TOKEN_BUDGET.
    """

    name: str = "chunked"
    tokens: float = 0.0

    def budget(self, requested: float | None, default: float) -> float:
        """Token budget of a step.  requested: by the user, None if not given; default: of the engine."""
        if requested == 0.0:
            raise UserError(
                f"{WHERE} and --max-num-batched-tokens 0: a step with chunks has a token budget; give it, or use "
                "--batching continuous"
            )
        if requested and self.tokens and requested != self.tokens:
            raise UserError(
                f"{WHERE},tokens={self.tokens:g} and --max-num-batched-tokens {requested:g} both set the token budget "
                "of a step; remove one of them"
            )
        return requested or self.tokens or (default if np.isfinite(default) else DEFAULT_TOKEN_BUDGET)

    def admit(self, request: Request, replica: Replica) -> Running | None:
        """Sequences that fit in the KV cache, and their chunk plan, whatever the engine's own scheduler."""
        return Continuous.admit(self, request, replace(replica, scheduler=SCHEDULERS[USUAL], mixes=True))


@technique(
    "continuous",
    where="--batching continuous",
    kind="batching",
    formula="A of U users run, in a pipeline as one micro-batch per stage; prompts run in decode steps, with the token "
    "budget of the engine (as chunked), or between them, as its scheduler does: cycle = A p + n t; a = (A - 1)/n of "
    "the others end with a step, at random, so that a prompt meets the rest w of a pass and c prompts in its own: "
    "TTFT = host + w + c p + p + (U/A - 1) cycle, and TPOT is the rest of the cycle over n",
    source="Orca, OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu; vLLM arXiv 2309.06180; "
    "schedulers: llmviewer/serving/scheduling.py",
    example="llama-2-13b --hardware a100-sxm --batch-size 16 --batching continuous",
)
def continuous() -> Change:
    """A new sequence starts whenever another ends, and prompts are prefilled between decode steps; batch_size users
    each send their next request when the last is answered.
    """
    return with_batching(Continuous())


@technique(
    "chunked",
    where=WHERE,
    kind="batching",
    formula="chunk = tokens - decodes; k = ceil(S / chunk) steps per prompt, n steps per answer; with A running "
    "sequences a fraction A k / (n + k) of the steps is mixed; above 1 all steps are mixed, chunks of two prompts "
    "share a step, k = max((n + k) / A, (S + n) / tokens), and prompts queue if steps are full; each chunk reads the "
    "keys of the chunks before it; TTFT = k mixed steps, TPOT = ((A - 1) k mixed steps + the remaining pure steps) / n"
    "; with --speculative a decode takes as many tokens as it verifies, n are rounds, and each mixed step drafts, too",
    source="Sarathi arXiv 2308.16369, Sarathi-Serve arXiv 2403.02310; DeepSpeed-FastGen arXiv 2401.08671",
    example="llama-2-13b --hardware a100-sxm --batch-size 16 --batching chunked,tokens=512",
)
def chunked(
    tokens: Annotated[
        float | None,
        Whole(
            "token budget of a step",
            16,
            2.0**24,
            unset=f"--max-num-batched-tokens, else the engine's budget, else {DEFAULT_TOKEN_BUDGET:g}",
        ),
    ] = None,
) -> Change:
    """Continuous batching in steps with a token budget: each decodes all running sequences and prefills a chunk of a
    prompt (Sarathi, FastGen's split-and-fuse).
    """

    def change(system: System) -> System:
        check_mixable("chunked", system)
        if system.applies("branches("):
            raise UserError(
                f"{WHERE} and --branches are not modelled together: chunks are planned for a constant number of "
                "decodes, and branches vary it; use --batching continuous"
            )
        return with_batching(Chunked(tokens=tokens or 0.0))(system)

    return change
