"""How sequences share a machine: numbers worked by hand on a machine whose steps take a + b tokens, and relations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.ir import Array, Count
from llmviewer.schemes import chunked, disaggregated
from llmviewer.schemes.chunked import Chunked, plan
from llmviewer.schemes.disaggregated import BOUNDS, Disaggregated, Load
from llmviewer.serving import Batching, Machine, Running, Times
from llmviewer.workload import Request, Step

#: Seconds of a pass of the machine that is worked by hand: 10 ms and 0.1 ms a token.
FIXED, TOKEN = 0.010, 0.0001


def step_s(step: Step) -> Count:
    """a + b tokens."""
    return FIXED + TOKEN * step.tokens


def asked(users: float, prompt: float, output: float) -> Request:
    return Request(batch_size=np.array([users]), input_len=np.array([prompt]), output_len=np.array([output]))


def machine(places: float = np.inf, prompt_bytes: float = 1e9) -> Machine:
    """Linear in tokens; so many places."""
    return Machine(
        places=lambda request, budget: places + 0.0 * request.batch_size,
        prefill_s=lambda request: np.asarray(FIXED + TOKEN * request.batch_size * request.input_len),
        step_s=step_s,
        prompt_bytes=lambda request: prompt_bytes,
        new_tokens=lambda request: request.input_len,
    )


def served(batching: Batching, request: Request, on: Machine) -> Times:
    """The request on the machine that is worked by hand; its mixed steps hold the riders beside the chunks."""
    running = batching.admit(request, on)
    assert running is not None
    steps = request.output_len - 1.0
    decode_s = steps * (FIXED + TOKEN * running.request.batch_size)
    prefill_s = _prefill(running, request) if isinstance(running, chunked.Mixing) else on.prefill_s(
        replace(request, batch_size=running.together)
    )  # fmt: skip
    passes = Times(prefill_s=np.asarray(prefill_s), decode_s=np.asarray(decode_s), steps=np.asarray(steps))
    return batching.times(passes, running, request.batch_size)


def _prefill(running: Running, request: Request) -> Count:
    """k passes, each with its riders: the tokens of the prompts and k times those beside them."""
    assert isinstance(running, chunked.Mixing)
    chunks = running.plan.chunks
    return chunks * FIXED + TOKEN * (running.together * request.input_len + chunks * running.riders)


def e2e_s(times: Times) -> float:
    return float((times.ttft_s + times.generation_s)[0])


class TestChunked:
    def test_nobody_waits_while_prompts_are_rarer_than_steps(self) -> None:
        # 8 users, prompts of 1024, steps of 512: 7 decode beside a chunk of 505, so a prompt takes 3 steps;
        # of 127 + 3 steps of a cycle 8 x 3 are mixed
        found = plan(8.0, 1024.0, 127.0, 512.0)
        assert (found.chunks, found.together, found.decodes, found.chunk_tokens) == (3.0, 1.0, 7.0, 505.0)
        assert found.share == pytest.approx(24 / 130)

    def test_its_times(self) -> None:
        # 3 mixed steps hold 1024 + 3 x 7 tokens: 30 + 104.5 ms; a pure step of 8 takes 10.8 ms.  Between the 127 steps
        # of an answer the 7 others' prompts take 21
        times = served(Chunked(tokens=512), asked(8, 1024, 128), machine())
        assert times.ttft_s == pytest.approx(0.1345)
        assert times.generation_s == pytest.approx(7 * 0.1345 + (127 - 21) * 0.0108)
        assert times.tpot_s == pytest.approx((7 * 0.1345 + 106 * 0.0108) / 127)

    def test_every_step_is_mixed_and_prompts_queue_where_prompts_are_long(self) -> None:
        # 64 users, prompts of 4096, answers of 65 tokens: k = ceil((4096 + 64) / 512) = 9 steps a prompt,
        # 64 x 9 > 64 + 9: all mixed, 64 / 9 decode beside a chunk
        found = plan(64.0, 4096.0, 64.0, 512.0)
        assert (found.chunks, found.share) == (9.0, 1.0)
        assert found.decodes == pytest.approx(64 / 9)
        times = served(Chunked(tokens=512), asked(64, 4096, 65), machine())
        prefill = 9 * FIXED + TOKEN * (4096 + 64)
        assert times.prefill_s == pytest.approx(prefill)
        assert e2e_s(times) == pytest.approx(64 * prefill), "a prompt begins every 9 steps, and 64 users take turns"
        assert times.tpot_s == pytest.approx(prefill / 9), "every token waits for a mixed step"

    def test_short_prompts_share_a_step_when_several_come_in_one(self) -> None:
        # 64 users, answers of 8 tokens: 64 / 8 = 8 prompts come in every step; 8 x (32 + 7) tokens fit 512
        found = plan(64.0, 32.0, 7.0, 512.0)
        assert (found.chunks, found.together, found.share) == (1.0, 8.0, 1.0)
        assert found.decodes == pytest.approx(56.0)

    def test_one_user_alone_is_prefilled_in_chunks_and_then_decodes_undisturbed(self) -> None:
        times = served(Chunked(tokens=512), asked(1, 1024, 128), machine())
        assert times.ttft_s == pytest.approx(2 * FIXED + 1024 * TOKEN)
        assert times.generation_s == pytest.approx(127 * (FIXED + TOKEN))

    def test_a_budget_without_bound_makes_one_chunk_of_every_prompt(self) -> None:
        found = plan(8.0, 1024.0, 127.0, 1e12)
        assert (found.chunks, found.chunk_tokens, found.decodes) == (1.0, 1024.0, 7.0)

    def test_answers_of_one_token_decode_nothing(self) -> None:
        times = served(Chunked(tokens=512), asked(8, 1024, 1), machine())
        assert np.isnan(times.tpot_s).all()
        assert e2e_s(times) == pytest.approx(8 * (2 * FIXED + 1024 * TOKEN))

    @given(
        users=st.integers(1, 4096), prompt=st.integers(1, 10**5), steps=st.integers(0, 10**4),
        budget=st.integers(16, 8192),
    )  # fmt: skip
    def test_no_step_exceeds_its_budget_and_the_chunks_make_the_prompt(
        self, users: int, prompt: int, steps: int, budget: int
    ) -> None:
        found = plan(float(users), float(prompt), float(steps), float(budget))
        assert found.chunks == np.ceil(prompt / found.chunk_tokens)
        if found.chunks > 1:
            assert found.chunk_tokens + found.decodes <= budget * (1 + 1e-6)
        elif steps:
            assert found.together * prompt + found.decodes <= budget * (1 + 1e-9)
        assert 0.0 <= found.decodes <= users and 0.0 < found.share <= 1.0

    @given(users=st.integers(1, 512), prompt=st.integers(1, 20000), output=st.integers(1, 2000))
    def test_users_are_throughput_times_end_to_end_time(self, users: int, prompt: int, output: int) -> None:
        """Little: in a cycle of A places A requests end; a place waits, prefills or generates all the time."""
        times = served(Chunked(tokens=512), asked(users, prompt, output), machine(places=64.0))
        running = min(users, 64)
        assert e2e_s(times) == pytest.approx(float(times.cycle_s[0]) * users / running)
        assert (times.queue_s >= 0.0).all() and (times.waiting_s >= 0.0).all()  # type: ignore[attr-defined]

    def test_decode_maximal_batches_serve_more_than_prompts_between_decode_steps(self) -> None:
        """Sarathi (arXiv 2308.16369): decodes ride on the weights that a chunk reads anyway."""
        from llmviewer.schemes.continuous import Continuous

        request = asked(16, 1024, 256)
        apart = replace(served(Continuous(), request, machine()), interference=1.0)
        assert e2e_s(served(Chunked(tokens=512), request, machine())) < e2e_s(apart)


def load(**changes: Any) -> Load:
    """2 instances prefill in 0.1 s each, 1 decodes; 32 users."""
    known: dict[str, Any] = {
        "users": np.array([32.0]), "prefill": 2.0, "decode": 1.0, "prefill_s": np.array([0.1]),
        "transfer_s": np.array([0.02]), "places": np.array([np.inf]),
    }  # fmt: skip
    return Load(**(known | changes))


def decode_s(batches: Array) -> Array:
    """100 steps."""
    return 100.0 * (FIXED + TOKEN * batches)


class TestDisaggregated:
    def test_the_decode_batch_follows_from_what_prefill_feeds(self) -> None:
        # X = 2 / 0.1 = 20 requests/s; b / (100 (10 + 0.1 b) ms) = 20 -> b = 20 (1 + 0.01 b) -> b = 25
        assert load().batch(decode_s) == pytest.approx(25.0, rel=1e-6)

    def test_too_few_users_keep_nobody_waiting(self) -> None:
        # X (0.1 + 0.02) + b = 8 and X = b / (1 + 0.01 b): b^2 - b(8 - 1.12 / 0.01 ...) solved by hand below
        (batch,) = load(users=np.array([8.0])).batch(decode_s)
        rate = batch / (1.0 + 0.01 * batch)
        assert rate * 0.12 + batch == pytest.approx(8.0, rel=1e-6)

    def test_a_sequence_alone_decodes_in_a_batch_of_one(self) -> None:
        assert load(users=np.array([1.0])).batch(decode_s) == pytest.approx(1.0)

    def test_there_are_no_more_sequences_than_places(self) -> None:
        assert load(places=np.array([4.0])).batch(decode_s) == pytest.approx(4.0)

    @pytest.mark.parametrize(
        ("prompt", "output", "link", "places", "bound"),
        [
            (8192, 11, 1e12, 1e6, "prefill"),
            (8192, 11, 1e8, 1e6, "link"),
            (64, 1025, 1e12, 4, "decode"),
            (8192, 1025, 1e12, 1e6, "users"),
        ],
    )
    def test_the_slowest_resource_bounds_the_throughput(
        self, prompt: int, output: int, link: float, places: float, bound: str
    ) -> None:
        batching = Disaggregated(prefill=2.0, decode=2.0, link_bytes_per_s=link)
        times = served(batching, asked(16, prompt, output), machine(places))
        assert isinstance(times, disaggregated.DisaggregatedTimes)
        rates = dict(zip(BOUNDS, times.load.rates(times.decode_s), strict=True))
        assert times.facts()["bound"] == [bound] == [min(rates, key=lambda name: float(rates[name][0]))]
        assert times.requests_per_s == pytest.approx(rates[bound])
        assert 16 / e2e_s(times) == pytest.approx(float(times.requests_per_s[0])), "Little"

    @given(
        users=st.integers(1, 512), prefill=st.integers(1, 8), decode=st.integers(1, 8),
        prompt=st.integers(1, 20000), output=st.integers(1, 1000),
    )  # fmt: skip
    def test_nothing_serves_more_than_its_slowest_part_and_nobody_waits_less_than_nothing(
        self, users: int, prefill: int, decode: int, prompt: int, output: int
    ) -> None:
        batching = Disaggregated(prefill=float(prefill), decode=float(decode), link_bytes_per_s=5e10)
        times = served(batching, asked(users, prompt, output), machine(places=32.0))
        assert isinstance(times, disaggregated.DisaggregatedTimes)
        rate = float(times.requests_per_s[0])
        for allowed in times.load.rates(times.decode_s):
            assert rate <= float(allowed[0]) * (1 + 1e-12)
        assert users == pytest.approx(rate * e2e_s(times)), "Little"
        assert (times.queue_s >= 0.0).all() and (times.transfer_s >= times.load.transfer_s * (1 - 1e-12)).all()

    def test_the_transfer_delays_the_second_token_and_not_the_first(self) -> None:
        slow, fast = (
            served(Disaggregated(link_bytes_per_s=link), asked(1, 1024, 101), machine()) for link in (1e9, np.inf)
        )
        assert slow.ttft_s == fast.ttft_s
        assert slow.generation_s - fast.generation_s == pytest.approx(1.0)  # 1e9 bytes at 1e9 bytes/s
