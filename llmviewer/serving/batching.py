"""How sequences share a replica: waiting times, and the resulting TTFT, TPOT and end-to-end latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.serving.holding import Hold
from llmviewer.serving.scheduling import SCHEDULERS, USUAL, Scheduler

#: Figures of a batching in a result: name with unit -> counts per point, or a word per point.
BatchingFacts: TypeAlias = Mapping[str, Count | Sequence[str]]
Times = TypeVar("Times", bound="RequestTimes")

#: Largest share of a replica's time that prompts take in the law of a queue, which has no steady state beyond.
MOST_BUSY = 0.98


@frozen(eq=False)
class RequestTimes:
    """Times of passes and waiting times of a request [s], one entry per point.

    prefill_s: all prompts that are prefilled together.  decode_s: all decode steps of a sequence.
    steps: number of decode steps.  users: sequences to serve concurrently; running: those whose KV cache fits.
    prompts_per_pass: number of prompts in prefill_s; most_prompts: that fit in a pass.
    request_s: time of the host before the first token of a request, beside its passes.  next_s: time after which other
    prompts can follow those of prefill_s, shorter in a pipeline; None: prefill_s.  ranks: replicas that share experts;
    growing, fixed: shares of a prompt's time that are work on the tokens of all of them, and grow with these or not.
    staged: `ranks` are micro-batches of the running sequences in a pipeline: one with prompts takes its time on every
    stage, the others follow behind it, and a prompt joins the one that begins next.  hold: how prompts are held back,
    on `holding` ranks; a user waits for that beside a cycle of the replica.

    One of A sequences ends with a step of the others, and its next prompt comes when the host has prepared it: it waits
    for the end of the step that runs then (`rest_s`) and shares its pass with those that came in the same step.  This
    time is taken from that between tokens: a request takes one cycle of the replica however it is divided.

    Ranks step together, so that all of them wait for the one with the most prompts: a step has E[max N] of them and not
    E[N].  Where a step has at most one, with the chance q, that is 1 - (1 - q)^d for q.
    """

    prefill_s: Array
    decode_s: Array
    steps: Array
    users: Count = 1.0
    running: Count = 1.0
    prompts_per_pass: Count = 1.0
    most_prompts: Count = 1.0
    request_s: Count = 0.0
    next_s: Array | None = None
    ranks: Count = 1
    growing: Count = 0.0
    fixed: Count = 0.0
    staged: bool = False
    hold: Hold | None = None
    holding: Count = 1

    @property
    def others_s(self) -> Array:
        """Prefill of the other running sequences [s]: each starts one request during one of ours."""
        next_s = self.prefill_s if self.next_s is None else self.next_s
        return np.asarray(next_s / self.prompts_per_pass * np.maximum(self.sequences - self.prompts_per_pass, 0.0))

    @property
    def parts(self) -> Count:
        """Micro-batches of the running sequences."""
        return self.ranks if self.staged else 1.0

    @property
    def sequences(self) -> Count:
        """Running sequences that share steps."""
        return self.running / self.parts

    @property
    def cycle_s(self) -> Array:
        """Time between the starts of two requests in the same cache slot [s]."""
        return self.prefill_s + self.others_s + self.decode_s + self.waits_s

    @property
    def arriving(self) -> Count:
        """Mean number of prompts that a step of a replica computes."""
        return self.sequences / (self.steps + self.sequences / self.prompts_per_pass)

    @property
    def most_of_ranks(self) -> tuple[Count, Count]:
        """Mean of the most prompts that any rank has in a step; the same in a step with one's own."""
        most, beside = most_of(self.arriving, self.ranks, self.most_prompts)
        return most, self.before_own(beside)

    def before_own(self, most: Count) -> Count:
        """The most prompts in a step with one's own; in a pipeline of p stages half of the others are before it, each
        for a p-th of its time."""
        if not self.staged:
            return most
        return self.prompts_per_pass + 0.5 * (self.ranks - 1) * self.arriving / self.ranks

    @property
    def added_s(self) -> Array:
        """Time by which one more prompt lengthens a step for the ranks that only decode in it [s]."""
        return np.maximum(self.prompt_s - self.step_s / self.prompts_per_pass, 0.0)

    @property
    def alone(self) -> Count:
        """Time of the prompts of one rank beside as many as the others have in the mean, over that beside as many."""
        fewer = np.maximum(1.0 - self.arriving / self.prompts_per_pass, 0.0)
        return 1.0 - self.growing * (1.0 - 1.0 / self.ranks) * fewer

    @property
    def waits_s(self) -> Count:
        """Time of a cycle in which a rank waits for prompts of others [s]."""
        if np.all(self.ranks == 1):
            return 0.0
        most, _ = self.most_of_ranks
        own = 1.0 - self.growing - self.fixed
        mean = self.arriving / self.prompts_per_pass
        any_rank = 1.0 - (1.0 - np.minimum(mean, 1.0)) ** self.ranks
        more = own * np.maximum(most / self.arriving - 1.0, 0.0) + self.fixed * np.maximum(any_rank / mean - 1.0, 0.0)
        return np.asarray(self.added_s * self.sequences * more)

    @property
    def own_wait_s(self) -> Count:
        """Part of it in the pass of one's own prompt [s]; below 0 where experts have those of fewer ranks."""
        if np.all(self.ranks == 1):
            return 0.0
        _, most = self.most_of_ranks
        idle = self.prompts_per_pass * (1.0 - self.alone)
        more = (1.0 - self.growing - self.fixed) * np.maximum(most - self.prompts_per_pass, 0.0)
        return np.asarray(self.added_s * (more - idle))

    @property
    def queue_s(self) -> Array:
        """Waiting time for a cache slot [s]: each becomes free once per cycle, and users share the slots."""
        return np.asarray((np.maximum(self.users / self.running, 1.0) - 1.0) * self.cycle_s)

    @property
    def prompt_s(self) -> Array:
        """Time by which one more prompt lengthens a pass [s]."""
        next_s = self.prefill_s if self.next_s is None else self.next_s
        return np.asarray(next_s / self.prompts_per_pass)

    @property
    def step_s(self) -> Array:
        """Time of a decode step [s]; 0 without any."""
        return np.where(self.steps > 0, self.decode_s / np.maximum(self.steps, 1.0), 0.0)

    @property
    def others(self) -> Count:
        """Other sequences that share steps with one."""
        return np.maximum(self.sequences - 1.0, 0.0)

    @property
    def ending(self) -> Count:
        """Mean number of them that end with a step."""
        return self.others / np.maximum(self.steps, 1.0)

    @property
    def met_s(self) -> Array:
        """Mean length of the pass that a prompt meets which comes at any time [s]: E[x^2] / E[x] of passes x.

        A pass is p N long after one with N > 0 arrivals, else a decode step t; N is Poisson with mean lambda x.
        """
        busy = self.busy
        long_s = self.prompt_s * self.alone
        return np.asarray((busy * long_s + (1.0 - busy) * self.step_s) / (1.0 - np.square(busy)))

    @property
    def busy(self) -> Array:
        """Share of the time that the prompts of others take, on all ranks."""
        taken = self.others / self.cycle_s * self.prompt_s + self.waits_s / self.cycle_s
        return np.minimum(taken, MOST_BUSY)

    @property
    def rest_s(self) -> Array:
        """Rest of the pass that a prompt meets when it comes [s]; prompts run between decode steps."""
        return self.rest_after_step(between=True)

    def rest_after_step(self, longer_s: Count = 0.0, *, between: bool) -> Array:
        """Rest of the pass that a prompt meets [s], after the end of a step on any rank.

        longer_s: time of further steps of the same prompts.  between: prompts run between steps, else in them.
        """
        long_s = self.prompt_s * self.prompts_per_pass * self.alone + longer_s
        ending = self.ending + (self.ranks - 1) * self.arriving
        return rest_of_pass(self.request_s, self.step_s, long_s, ending, 0.5 * self.met_s, between=between)

    @property
    def together(self) -> Array:
        """Other prompts of the same pass: those that ended with the same step, or came while it ran."""
        waiting = self.ending * np.maximum(self.request_s / np.maximum(self.step_s, 1e-12), 1.0)
        return np.minimum(waiting, self.others / self.cycle_s * self.met_s)

    @property
    def held(self) -> tuple[Count, Count]:
        """Steps for which one's own prompt is held back while others decode, and the prompts that go with it."""
        if self.hold is None:
            return 0.0, 0.0
        steps, beside = self.hold.of(self.ending, self.holding)
        return np.where(self.others > 0.0, steps, 0.0), beside

    @property
    def share_before(self) -> Count:
        """Share of the prompts that come with one's own which run before its end: all of its pass."""
        return 1.0

    @property
    def most_ahead_s(self) -> Array:
        """Time of the others' prompts that can run before one's own [s]."""
        return self.others_s + self.waits_s

    @property
    def ahead_s(self) -> Array:
        """Rest of the pass that a prompt meets, and the other prompts of its own pass [s].

        Without tokens after the first there is no time between them: all prompts of others run before one's own.
        """
        rest_s = np.where((self.others > 0.0) | (self.ranks > 1), self.rest_s, 0.0) / self.parts
        together = self.together + self.held[1]
        more = np.maximum(1.0 + self.share_before * together - self.prompts_per_pass, 0.0)
        ahead = rest_s + more * self.prompt_s * self.alone
        return np.where(self.steps > 0, np.minimum(ahead, self.most_ahead_s), self.others_s)

    @property
    def ttft_s(self) -> Array:
        """Queue, the time before its own pass, its own prefill, and its host time [s]."""
        before_s = self.queue_s + self.held[0] * self.step_s + self.ahead_s
        return np.asarray(before_s + self.prefill_s + self.own_wait_s + self.request_s)

    @property
    def generation_s(self) -> Array:
        """Time from the first token to the last [s]: decode steps, and others' prefill between them."""
        return np.asarray(self.decode_s + self.others_s + self.waits_s - self.own_wait_s - self.ahead_s)

    @property
    def burst_s(self) -> Array:
        """Mean TTFT of the running sequences if all begin at once [s]: passes full of prompts, one after another."""
        last = np.maximum(self.running, 1.0)
        together = np.minimum(np.maximum(self.most_prompts, 1.0), last)
        alone_s = np.maximum(self.prefill_s - self.prompts_per_pass * self.prompt_s, 0.0)
        passes_s = 0.5 * (last + together) * self.prompt_s + 0.5 * (np.ceil(last / together) + 1.0) * alone_s
        return np.asarray(self.request_s + passes_s)

    def begun_together(self, requests: Count) -> tuple[Array, Array]:
        """Mean TTFT, and time from first to last token, of users who begin together and send so many requests each [s].

        The first request of each is that of a burst; the others meet those of others as in the steady state, because
        lengths vary.  The longer wait of the first is no time between tokens.
        """
        later_s = np.where(self.steps > 0, (self.burst_s + self.queue_s - self.ttft_s) / requests, 0.0)
        return self.ttft_s + later_s, self.generation_s - later_s

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
            "others_prefill_s": self.others_s + self.waits_s,
            "queue_s": self.queue_s,
            "burst_ttft_s": self.burst_s,
        }


def most_of(mean: Count, ranks: Count, most: Count) -> tuple[Count, Count]:
    """Mean of the largest of `ranks` numbers of prompts; the same where a given one is not 0.

    They have a Poisson distribution of this mean F, cut at `most`: E[max] = sum over k of 1 - F(k)^d, and with the
    given number above 0, of 1 - F(k)^(d - 1) (F(k) - F(0)) / (1 - F(0)).
    """
    means, limits = np.broadcast_arrays(np.maximum(mean, RAREST), np.maximum(most, 1.0))
    largest = np.max(means)
    k = np.arange(np.minimum(np.max(limits), largest + 12.0 * np.sqrt(largest) + 12.0))[:, None]
    logs = k * np.log(means) - means - np.concatenate(([0.0], np.cumsum(np.log(k[1:, 0]))))[:, None]
    reached = np.where(k < limits, np.minimum(np.cumsum(np.exp(logs), axis=0), 1.0), 1.0)
    some = (reached - reached[0]) / -np.expm1(-means)
    return np.sum(1.0 - reached**ranks, axis=0), np.sum(1.0 - reached ** (ranks - 1) * some, axis=0)


#: Prompts of a step below which none ever comes.
RAREST = 1e-9
#: Times of the host over their mean: requests.py draws them evenly between the first and the last.
HOST_TIMES = (0.5, 0.75, 1.0, 1.25, 1.5)
#: Steps that the host may take for a request before the moment at which its prompt comes is any.
MOST_STEPS = 64


def rest_of_pass(
    host_s: Count, step_s: Array, long_s: Array, ending: Count, at_any_time_s: Array, *, between: bool
) -> Array:
    """Time to the end of the pass that runs the host's time after the end of a step [s].

    Steps follow each other; each has `long_s` of prompts more with the chance that any of `ending` sequences has ended.
    between: these run before the step, else in it.  After a step with prompts the moment is any: at_any_time_s.
    Without a host prompts come with the end of a step, and wait for none.
    """
    if not np.any(host_s):
        return np.zeros_like(at_any_time_s)
    chance, steps = np.broadcast_arrays(-np.expm1(-np.asarray(ending)), np.maximum(step_s, 1e-9))
    number = np.arange(MOST_STEPS)[:, None]
    left = np.array(HOST_TIMES)[:, None, None] * host_s - number * steps
    ends = np.where(between & (left < long_s), long_s, long_s + steps)
    met = chance * np.where(left < long_s + steps, ends - left, at_any_time_s)
    short = np.where(left < steps, (1.0 - chance) * (steps - left), 0.0)
    none_before = (1.0 - chance) ** number
    later = np.where(left[:, -1] >= steps, none_before[-1] * (1.0 - chance) * at_any_time_s, 0.0)
    waits = np.mean(np.sum(np.where(left >= 0.0, none_before * (met + short), 0.0), axis=1) + later, axis=0)
    return np.where(np.asarray(host_s) > 0.0, waits, 0.0)


def per_token(generation_s: Array, steps: Array) -> Array:
    """Mean time per decode step [s]; NaN where there is none, or where the first pass decides all tokens."""
    return np.where((steps > 0) & (generation_s > 0.0), generation_s / np.maximum(steps, 1.0), np.nan)


@frozen(eq=False)
class Replica:
    """Figures of one replica that a batching policy needs [counts per point, byte].

    max_sequences: sequences of a request whose KV cache fits, given the largest number of tokens of a pass.
    prompt_bytes: KV cache of one prompt on each device.  new_tokens: tokens of each prompt without its prefix hit.
    token_budget: most tokens of a prefill pass.  microbatches: parts of the running sequences, one per pipeline stage.
    step_tokens: most tokens of a step, in passes of token_budget one after another.
    verified_tokens: tokens of a sequence in a decode step; tokens_per_round: those that it keeps in expectation.
    scheduler: policy of its engine; mixes: whether a pass with prompts can hold decoding sequences too.
    """

    max_sequences: Callable[[Request, Count], Count]
    prompt_bytes: Callable[[Request], Count]
    new_tokens: Callable[[Request], Count]
    token_budget: float = np.inf
    step_tokens: float = np.inf
    microbatches: int = 1
    verified_tokens: Count = 1.0
    tokens_per_round: Count = 1.0
    scheduler: Scheduler = SCHEDULERS[USUAL]
    mixes: bool = True


@frozen(eq=False)
class Running:
    """Sequences that run concurrently on one replica and start one by one.

    request: the sequences that decode together.  prompts_per_pass: prompts of a prefill pass; most_prompts: that fit.
    chunk_tokens: most prompt tokens of a pass, if it differs from the engine's token budget.
    decodes: sequences that decode in every prefill pass.  filled: 1.0 where the last pass of a prompt is filled up with
    tokens of the next prompt.  mixed: prompts are prefilled in the steps of their micro-batch, chunk by chunk.
    prompt_steps: steps of a prompt where each runs as several passes, which share its decodes; None: a step is a pass.
    """

    request: Request
    prompts_per_pass: Count
    most_prompts: Count = 1.0
    chunk_tokens: Count | None = None
    decodes: Count = 0.0
    filled: Count = 0.0
    mixed: bool = False
    prompt_steps: Count | None = None


@frozen
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
            passes,
            users=users,
            running=running.request.batch_size,
            prompts_per_pass=running.prompts_per_pass,
            most_prompts=running.most_prompts,
        )

    def facts(self, request: Request) -> BatchingFacts:
        """Figures of a static batch for the result."""
        return {}


#: All prompts are prefilled together, and all sequences end together.
STATIC = Batching()
