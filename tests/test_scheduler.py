"""The event loop does what engines' schedulers do step by step: against a reference that touches every sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.simulation.fleet import Fleet
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import Outcome, simulate_requests
from tests.simulated import Cache, Linear, fleet, requests


@dataclass(slots=True)
class One:
    """A request of the reference: tokens computed of those that it has, and blocks."""

    index: int
    prompt: int
    answer: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    decodes: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated


class Reference:
    """vLLM's V1 scheduler, one step and one sequence at a time: running requests first, in order, each with all tokens
    that it has not computed; blocks that are missing are taken from the request that started last; then, if none was
    preempted, waiting requests in order, as long as there are tokens, places and blocks for all that each has
    (scheduler_reserve_full_isl, true by default: https://github.com/vllm-project/vllm/pull/37307).

    Free blocks keep their content, and the first of their queue is taken first; a request's last block is freed first.

    Facts: https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py, Scheduler.schedule;
    https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/block_pool.py.
    """

    def __init__(self, asked: Requests, served: Fleet) -> None:
        self.asked, self.prices, self.room = asked, served.prefill.prices, served.prefill.room
        self.mixes = served.prefill.scheduler.mixes
        self.queue: list[tuple[int, int]] = [(-1, 0)] * self.room.blocks  # request and number of each free block
        self.free, self.clock = self.room.blocks, 0.0
        self.coming = [One(i, *sizes) for i, sizes in enumerate(zip(asked.input_len, asked.output_len, strict=True))]
        self.waiting: list[One] = []
        self.running: list[One] = []
        self.first = np.full(len(asked), np.nan)
        self.last = np.full(len(asked), np.nan)
        self.preempted = np.zeros(len(asked), dtype=int)

    def needed(self, one: One, tokens: int) -> int:
        return -(-(one.computed + tokens) // self.room.block_tokens) - one.blocks

    def leave(self, one: One) -> None:
        self.free += one.blocks
        whole = one.computed // self.room.block_tokens
        self.queue += [(one.index, block) if block < whole else (-1, 0) for block in reversed(range(one.blocks))]

    def find(self, one: One) -> None:
        """Give a waiting request its own blocks that are still in the queue, in order from the first."""
        while self.mixes and (one.index, one.blocks) in self.queue:
            self.queue.remove((one.index, one.blocks))
            self.free -= 1
            one.blocks += 1
            one.computed += self.room.block_tokens

    def preempt(self, one: One) -> None:
        self.leave(one)
        one.blocks = one.computed = 0
        one.decodes = False
        self.preempted[one.index] += 1
        self.waiting.insert(0, one)

    def take(self, one: One, tokens: int) -> None:
        self.free -= self.needed(one, tokens)
        del self.queue[: self.needed(one, tokens)]
        one.blocks += self.needed(one, tokens)

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            while self.coming and self.asked.arrival_s[self.coming[0].index] <= self.clock:
                self.waiting.append(self.coming.pop(0))
            if not self.waiting and not self.running:
                self.clock = float(self.asked.arrival_s[self.coming[0].index])
                continue
            self.step()

    def step(self) -> None:
        budget, chosen, any_preempted = self.room.token_budget, [], False
        prompts_first = not self.mixes
        if prompts_first:
            chosen = self.admit(budget)
        if not chosen:
            at = 0
            while at < len(self.running):
                one = self.running[at]
                tokens = min(one.tokens - one.computed, budget)
                while self.needed(one, tokens) > self.free and one in self.running:
                    any_preempted = True
                    self.preempt(self.running.pop())
                if one not in self.running:
                    break
                self.take(one, tokens)
                chosen.append((one, tokens))
                budget -= tokens
                at += 1
            if self.mixes and not any_preempted:
                chosen += self.admit(budget)
        self.finish(chosen)

    def admit(self, budget: int) -> list[tuple[One, int]]:
        chosen = []
        begun = [one for one in self.running if not self.mixes and not one.decodes]
        for one in begun:  # prompts that were computed in part go on first
            tokens = min(one.tokens - one.computed, budget)
            if self.needed(one, tokens) > self.free:
                self.running.remove(one)
                self.preempt(one)
                return chosen
            self.take(one, tokens)
            chosen.append((one, tokens))
            budget -= tokens
        while self.waiting and budget > 0 and len(self.running) < self.room.max_sequences:
            one = self.waiting[0]
            if self.needed(one, one.tokens) > self.free:  # the whole prompt, not its first chunk
                break
            self.find(one)
            tokens = min(one.tokens - one.computed, budget)
            self.take(self.waiting.pop(0), tokens)
            self.running.append(one)
            chosen.append((one, tokens))
            budget -= tokens
        return chosen

    def finish(self, chosen: list[tuple[One, int]]) -> None:
        decodes = [one for one, _ in chosen if one.decodes]
        chunks = [(one, tokens) for one, tokens in chosen if one not in decodes]
        context = float(sum(one.computed for one in decodes))
        ended = [one for one, tokens in chunks if one.computed + tokens == one.tokens]
        pairs = sum(tokens * one.computed + tokens * (tokens + 1) / 2 for one, tokens in chunks)
        tokens = sum(tokens for _, tokens in chunks)
        if tokens:
            self.clock += self.prices.mixed_s(len(decodes), context, tokens, pairs, len(ended))
        else:
            base, slope, _ = self.prices.decode_line(len(decodes), context)
            self.clock += base + slope * context
        for one, count in chosen:
            one.computed += count
            if one.computed == one.tokens:
                one.decodes = True
                one.generated += 1
                if one.generated == 1:
                    self.first[one.index] = self.clock
                if one.generated == one.answer:
                    self.last[one.index] = self.clock
                    self.leave(one)
                    self.running.remove(one)


def compared(asked: Requests, served: Fleet) -> tuple[Reference, Outcome]:
    reference = Reference(asked, served)
    reference.run()
    return reference, simulate_requests(asked, served)


@st.composite
def loads(draw: st.DrawFn) -> Requests:
    count = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.floats(0.0, 0.2), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(1, 300), min_size=count, max_size=count))
    answers = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    return requests(list(np.cumsum(gaps)), prompts, answers)


def assert_alike(reference: Reference, outcome: Outcome) -> None:
    np.testing.assert_allclose(outcome.records.first_token_s, reference.first, rtol=1e-9)
    np.testing.assert_allclose(outcome.records.finish_s, reference.last, rtol=1e-9)
    np.testing.assert_array_equal(outcome.records.preemptions > 0, reference.preempted > 0)


@settings(max_examples=60, deadline=None)
@given(asked=loads(), budget=st.integers(32, 600), places=st.integers(1, 30))
def test_jumps_equal_vllms_scheduler_step_by_step(asked: Requests, budget: int, places: int) -> None:
    served = fleet(room=Cache(token_budget=budget, max_sequences=places))
    assert_alike(*compared(asked, served))


@settings(max_examples=60, deadline=None)
@given(asked=loads(), budget=st.integers(64, 600))
def test_preemption_equals_vllms_scheduler_step_by_step(asked: Requests, budget: int) -> None:
    served = fleet(room=Cache(token_budget=budget, blocks=30))
    assert_alike(*compared(asked, served))


@settings(max_examples=40, deadline=None)
@given(asked=loads(), budget=st.integers(64, 600))
def test_prompts_before_decodes_equal_the_steps_of_sglang(asked: Requests, budget: int) -> None:
    served = fleet(room=Cache(token_budget=budget), scheduler="sglang")
    assert_alike(*compared(asked, served))


def test_one_request_by_hand() -> None:
    # 100 prompt tokens, 5050 pairs: 8 + 2 + 0.000505 ms; then steps of 8.01 ms + 15 ns per cached token
    outcome = simulate_requests(requests([1.0], 100, 3), fleet())
    first = 1.0 + 0.008 + 100 * 2e-5 + 5050 * 1e-10
    assert outcome.records.first_token_s[0] == pytest.approx(first)
    assert outcome.records.finish_s[0] == pytest.approx(first + 2 * 0.00801 + (100 + 101) * 1.5e-8)


def test_a_block_that_is_filled_in_part_is_taken() -> None:
    """Prompts of 17 tokens take two blocks of 16 each: three blocks hold one of them at a time, four hold both."""
    after, together = (
        simulate_requests(requests([0.0, 0.0], 17, 1), fleet(room=Cache(blocks=blocks))).records for blocks in (3, 4)
    )
    assert after.start_s.tolist() == [0.0, after.finish_s[0]] and after.finish_s[0] > 0.0
    assert together.start_s.tolist() == [0.0, 0.0]


def test_a_prompt_joins_the_step_of_decoding_sequences() -> None:
    # the second request arrives while the first decodes: its prompt shares a step with one decoding sequence
    outcome = simulate_requests(requests([0.0, 0.0301], [16, 16], [10, 1]), fleet(Linear(cached=0.0, pair=0.0)))
    first = 0.008 + 16 * 2e-5
    # decode steps of 8.01 ms end at 8.32, 16.33, 24.34, 32.35 ms; the prompt's step ends 8.33 ms later
    assert outcome.records.first_token_s[1] == pytest.approx(first + 3 * 0.00801 + 0.008 + 1e-5 + 16 * 2e-5)
