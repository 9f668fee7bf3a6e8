"""Batching policies: numbers calculated by hand for a replica whose steps take a + b tokens, and relations."""

from __future__ import annotations

import re
from dataclasses import replace
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer import models
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Role
from llmviewer.core.workload import Request, chunk, decode, mixed
from llmviewer.hardware import specs
from llmviewer.reports import analysis_page, serving, terminal
from llmviewer.reports.terminal import Screen
from llmviewer.serving.batching import Batching, Replica, RequestTimes, Running, most_of
from llmviewer.techniques.batching import continuous, disaggregated
from llmviewer.techniques.batching.continuous import Chunked, plan_chunks
from llmviewer.techniques.batching.disaggregated import BOUNDS, Disaggregated, Load
from tests.answers import analyze, answer

#: Time of a pass of the example replica: 10 ms plus 0.1 ms per token [s].
FIXED, TOKEN = 0.010, 0.0001


def request_of(users: float, prompt: float, output: float) -> Request:
    return Request(batch_size=np.array([users]), input_len=np.array([prompt]), output_len=np.array([output]))


def example_replica(places: float = np.inf, prompt_bytes: float = 1e9) -> Replica:
    """A replica with times linear in tokens and this number of cache slots."""
    return Replica(
        max_sequences=lambda request, budget: places + 0.0 * request.batch_size,
        prompt_bytes=lambda request: prompt_bytes,
        new_tokens=lambda request: request.input_len,
    )


def request_times(batching: Batching, request: Request, replica: Replica) -> RequestTimes:
    """The request on the example replica; its mixed steps contain decode sequences and prompt chunks."""
    running = batching.admit(request, replica)
    assert running is not None
    steps = request.output_len - 1.0
    decode_s = steps * (FIXED + TOKEN * running.request.batch_size)
    prefill_s = FIXED + TOKEN * running.prompts_per_pass * request.input_len
    if isinstance(running, continuous.ChunkedRunning):
        prefill_s = _prefill(running, request)
    passes = RequestTimes(prefill_s=np.asarray(prefill_s), decode_s=np.asarray(decode_s), steps=np.asarray(steps))
    return batching.times(passes, running, request.batch_size)


def _prefill(running: Running, request: Request) -> Count:
    """k passes with decode sequences: the tokens of the prompts plus k times the decode tokens."""
    assert isinstance(running, continuous.ChunkedRunning)
    chunks = running.plan.chunks
    return chunks * FIXED + TOKEN * (running.prompts_per_pass * request.input_len + chunks * running.decodes)


def e2e_s(times: RequestTimes) -> float:
    return float((times.ttft_s + times.generation_s)[0])


def simulate_engine(users: int, prompt: int, output: int, budget: int) -> tuple[float, float, float]:
    """TTFT, TPOT [s] and requests per second of an engine simulated step by step: decodes first, then tokens of the
    prompts in order of arrival; every user sends the next request when the answer is complete.

    Answers are half to one and a half times as long: equal ones would let users whose prompts meet fall in step.
    """
    steps, now, ended = output - 1, 0.0, 0
    random = np.random.default_rng(1)
    left = dict.fromkeys(range(users), 0)  # remaining prompt tokens of each user
    answer = {
        user: max(1, round(steps * (user + 1) / users)) for user in left
    }  # users start at different positions of their answers
    asked_at, first_at, drawn = dict.fromkeys(left, 0.0), dict.fromkeys(left, 0.0), dict(answer)
    queue = [] if steps else list(left)
    left.update(dict.fromkeys(queue, prompt))
    seen: list[tuple[float, float, float]] = []
    while ended < 40 * users:
        decoding = [user for user in left if not left[user] and answer[user]]
        room, begun = budget - len(decoding), []
        for user in queue:
            taken = min(room, left[user])
            left[user], room = left[user] - taken, room - taken
            begun += [] if left[user] else [user]
        now += FIXED + TOKEN * (budget - room)
        queue = queue[len(begun) :]
        for user in begun:
            first_at[user] = now
            answer[user] = drawn[user] = int(random.integers(-(-steps // 2), steps + steps // 2, endpoint=True))
        for user in decoding:
            answer[user] -= 1
        for user in [user for user in (*decoding, *begun) if not answer[user] and not left[user]]:
            ended += 1
            seen.append((first_at[user] - asked_at[user], (now - first_at[user]) / max(drawn[user], 1), now))
            asked_at[user], left[user] = now, prompt
            queue.append(user)
    first, token, at = np.array(seen[10 * users :]).T
    return float(first.mean()), float(token.mean()), (len(at) - 1) / float(at[-1] - at[0])


class TestChunked:
    def test_chunk_plan_with_rare_prompts(self) -> None:
        # 8 users, prompts of 1024, steps of 512: 7 decode with a chunk of 505, so a prompt takes 3 steps;
        # 8 x 3 of the 127 + 3 steps of a cycle are mixed
        found = plan_chunks(8.0, 1024.0, 127.0, 512.0)
        assert (found.chunks, found.prompts_per_pass, found.decodes, found.chunk_tokens) == (3.0, 1.0, 7.0, 505.0)
        assert found.share == pytest.approx(24 / 130)

    def test_ttft_and_tpot_by_hand(self) -> None:
        # 3 mixed steps have 1024 + 3 x 7 tokens: 30 + 104.5 ms; a pure step of 8 takes 10.8 ms.  Between the 127 steps
        # of an answer the 7 others' prompts take 21
        times = request_times(Chunked(tokens=512), request_of(8, 1024, 128), example_replica())
        # 7 of 130 others end with a step: half of their prompts, which add 134.5 - 3 x 10.8 ms, run before one's own;
        # a prompt comes in 2 of 3 steps of others' prompts, which need (1024 + 127) / 512 of 130 / 8 steps each
        busy = (1151 / 512) / (130 / 8) * 7 / 8
        ahead = 2 / 3 * busy * 0.1345 / (2 * (1 - busy)) + 0.5 * 7 / 130 * (0.1345 - 3 * 0.0108)
        assert times.ttft_s == pytest.approx(0.1345 + ahead)
        assert times.generation_s == pytest.approx(7 * 0.1345 + (127 - 21) * 0.0108 - ahead)
        assert times.tpot_s == pytest.approx((7 * 0.1345 + 106 * 0.0108 - ahead) / 127)

    def test_with_long_prompts_every_step_is_mixed_and_prompts_queue(self) -> None:
        # 64 users, prompts of 4096, answers of 65 tokens: k = (4096 + 64) / 512 = 8.125 full steps per prompt,
        # 64 x 8.125 > 64 + 9: all mixed, 64 / 8.125 decode with a chunk
        found = plan_chunks(64.0, 4096.0, 64.0, 512.0)
        assert (found.chunks, found.share, found.filled) == (8.125, 1.0, 1.0)
        assert found.decodes == pytest.approx(64 / 8.125)
        times = request_times(Chunked(tokens=512), request_of(64, 4096, 65), example_replica())
        prefill = 8.125 * FIXED + TOKEN * (4096 + 64)
        assert times.prefill_s == pytest.approx(prefill)
        assert e2e_s(times) == pytest.approx(64 * prefill), "a prompt begins every 8.125 steps, 64 users take turns"
        assert times.tpot_s == pytest.approx(FIXED + 512 * TOKEN), "every token waits for a full step"

    def test_several_short_prompts_share_a_step(self) -> None:
        # 64 users, answers of 8 tokens: 64 / 8 = 8 prompts arrive per step; 8 x (32 + 7) tokens fit 512
        found = plan_chunks(64.0, 32.0, 7.0, 512.0)
        assert found.chunks == 1.0
        assert found.prompts_per_pass == pytest.approx(8.0, rel=0.02)
        assert found.share == pytest.approx(1.0, rel=1e-3)
        assert found.decodes == pytest.approx(56.0, rel=0.01)

    def test_a_single_user_is_prefilled_in_chunks_and_decodes_without_interference(self) -> None:
        times = request_times(Chunked(tokens=512), request_of(1, 1024, 128), example_replica())
        assert times.ttft_s == pytest.approx(2 * FIXED + 1024 * TOKEN)
        assert times.generation_s == pytest.approx(127 * (FIXED + TOKEN))

    def test_an_unlimited_budget_makes_one_chunk_of_every_prompt(self) -> None:
        found = plan_chunks(8.0, 1024.0, 127.0, 1e12)
        together = (7 / 128) / (1 - np.exp(-7 / 128))  # prompts that meet in a step by chance
        assert (found.chunks, found.chunk_tokens, found.decodes) == pytest.approx((1.0, 1024 * together, 8 - together))

    def test_single_token_answers_have_no_decode_steps(self) -> None:
        times = request_times(Chunked(tokens=512), request_of(8, 1024, 1), example_replica())
        assert np.isnan(times.tpot_s).all()
        assert e2e_s(times) == pytest.approx(8 * (2 * FIXED + 1024 * TOKEN))

    @given(
        users=st.integers(1, 4096), prompt=st.integers(1, 10**5), steps=st.integers(0, 10**4),
        budget=st.integers(16, 8192),
    )  # fmt: skip
    def test_no_step_exceeds_its_budget_and_chunks_add_up_to_the_prompt(
        self, users: int, prompt: int, steps: int, budget: int
    ) -> None:
        found = plan_chunks(float(users), float(prompt), float(steps), float(budget))
        steps_of_a_prompt = prompt / found.chunk_tokens
        assert found.chunks == pytest.approx(
            steps_of_a_prompt if found.filled else np.ceil(steps_of_a_prompt * found.prompts_per_pass - 1e-9)
        )
        if found.chunks > 1:
            assert found.chunk_tokens + found.decodes <= budget * (1 + 1e-6)
        elif steps:
            assert found.prompts_per_pass * prompt + found.decodes <= budget * (1 + 1e-9)
        assert 0.0 <= found.decodes <= users and 0.0 < found.share <= 1.0

    @pytest.mark.parametrize(
        ("users", "prompt", "output", "budget"),
        [
            (8, 1024, 128, 512),  # prompts are rare
            (48, 700, 300, 256),
            (64, 1024, 128, 1024),  # two of three steps are mixed
            (128, 2000, 200, 2048),  # every step is mixed, and not full
            (256, 2048, 129, 2048),  # every step is full, and prompts queue
            (64, 4096, 65, 512),
            (200, 64, 100, 128),
            (16, 1024, 1, 512),
            (128, 128, 128, 512),  # a whole prompt in every step
        ],
    )
    def test_the_formula_matches_a_simulated_engine(self, users: int, prompt: int, output: int, budget: int) -> None:
        times = request_times(Chunked(tokens=budget), request_of(users, prompt, output), example_replica())
        first, token, rate = simulate_engine(users, prompt, output, budget)
        assert users / e2e_s(times) == pytest.approx(rate, rel=0.03)
        assert float(times.ttft_s[0]) == pytest.approx(first, rel=0.2)
        assert float(np.nan_to_num(times.tpot_s)[0]) == pytest.approx(token, rel=0.03)

    @given(users=st.integers(1, 512), prompt=st.integers(1, 20000), output=st.integers(1, 2000))
    def test_littles_law_holds(self, users: int, prompt: int, output: int) -> None:
        """Little's law: users = throughput x end-to-end time."""
        times = request_times(Chunked(tokens=512), request_of(users, prompt, output), example_replica(places=64.0))
        running = min(users, 64)
        assert e2e_s(times) == pytest.approx(float(times.cycle_s[0]) * users / running)
        assert (times.queue_s >= 0.0).all() and (times.waiting_s >= 0.0).all()  # type: ignore[attr-defined]

    def test_decode_maximal_batches_serve_more_than_prompts_between_decode_steps(self) -> None:
        """Sarathi (arXiv 2308.16369): decode sequences use the weights that a chunk reads anyway."""
        from llmviewer.techniques.batching.continuous import Continuous

        request = request_of(16, 1024, 256)
        separate = request_times(Continuous(), request, replace(example_replica(), mixes=False))
        assert e2e_s(request_times(Chunked(tokens=512), request, example_replica())) < e2e_s(separate)


def load(**changes: Any) -> Load:
    """2 instances prefill, 2 decode; 32 users."""
    known: dict[str, Any] = {
        "users": np.array([32.0]), "prefill": 2.0, "decode": 2.0,
        "transfer_s": np.array([0.02]), "places": np.array([np.inf]),
    }  # fmt: skip
    return Load(**(known | changes))


class TestDisaggregated:
    def test_a_full_decode_instance_has_its_part_of_the_users(self) -> None:
        """32 users over 2 decode instances: 16 each; 1 user: a batch of one; a cache of 4 sequences: 4."""
        assert load().batch == 16.0
        assert load(users=np.array([1.0])).batch == 1.0
        assert load(places=np.array([4.0])).batch == 4.0

    def test_times_by_hand_where_prefill_limits_the_throughput(self) -> None:
        """8 users, one instance of each kind: t_p = 10 + 0.1 x 4,090 = 419 ms, t_d = 100 steps of 10.8 ms for 8 tokens.

        X = 1 / 0.419 per second, below 8 / 1.08 (decode) and 8 / 1.499 (users).  E2E = 8 x 0.419 = 3.352 s, of which
        decoding takes 1.08 s and prefill 0.419 s; the rest of 1.853 s is queueing.  On average 1.08 / 0.419 sequences
        decode.
        """
        times = request_times(Disaggregated(), request_of(8, 4090, 101), example_replica())
        assert times.tpot_s == pytest.approx(0.0108)
        assert e2e_s(times) == pytest.approx(3.352)
        assert times.queue_s == pytest.approx(1.853)
        facts = times.facts()
        assert facts["decode_batch"] == 8.0 and facts["decode_batch_mean"] == pytest.approx(1.08 / 0.419)

    @pytest.mark.parametrize(
        ("prompt", "output", "link", "places", "bound"),
        [
            (8192, 11, 1e12, 1e6, "prefill"),
            (8192, 11, 1e8, 1e6, "link"),
            (64, 1025, 1e12, 4, "decode"),
            (8192, 1025, 1e12, 1e6, "users"),
        ],
    )
    def test_the_slowest_resource_limits_the_throughput(
        self, prompt: int, output: int, link: float, places: float, bound: str
    ) -> None:
        batching = Disaggregated(prefill=2.0, decode=2.0, link_bytes_per_s=link)
        times = request_times(batching, request_of(16, prompt, output), example_replica(places))
        assert isinstance(times, disaggregated.DisaggregatedTimes)
        rates = dict(zip(BOUNDS, times.rates, strict=True))
        assert times.facts()["bound"] == [bound] == [min(rates, key=lambda name: float(rates[name][0]))]
        assert times.requests_per_s == pytest.approx(rates[bound])
        assert 16 / e2e_s(times) == pytest.approx(float(times.requests_per_s[0])), "Little"

    @given(
        users=st.integers(1, 512), prefill=st.integers(1, 8), decode=st.integers(1, 8),
        prompt=st.integers(1, 20000), output=st.integers(1, 1000),
    )  # fmt: skip
    def test_throughput_is_at_most_that_of_the_slowest_part_and_waits_are_not_negative(
        self, users: int, prefill: int, decode: int, prompt: int, output: int
    ) -> None:
        batching = Disaggregated(prefill=float(prefill), decode=float(decode), link_bytes_per_s=5e10)
        times = request_times(batching, request_of(users, prompt, output), example_replica(places=32.0))
        assert isinstance(times, disaggregated.DisaggregatedTimes)
        rate = float(times.requests_per_s[0])
        for allowed in times.rates:
            assert rate <= float(allowed[0]) * (1 + 1e-12)
        assert users == pytest.approx(rate * e2e_s(times)), "Little"
        assert (times.queue_s >= 0.0).all()

    def test_requests_wait_for_decode_places_after_their_first_token(self) -> None:
        """16 users, 4 places in each instance: t_p = 10 + 0.1 x 990 = 109 ms, t_d = 100 steps of 10.4 ms.

        X = 4 / 1.04 per second, E2E = 16 / X = 4.16 s, waits 4.16 - 1.149 = 3.011 s.  The 4 places of the prefill
        instance keep 1 prompt in prefill and 3 that wait, 3 / X = 0.78 s each: this part of the wait is after the first
        token, 2.231 s before it.  With 64 places there, none is before it: TTFT = 109 ms = t_p.
        """
        request = request_of(16, 990, 101)
        few = request_times(Disaggregated(), request, example_replica(places=4.0))
        assert e2e_s(few) == pytest.approx(4.16)
        assert few.queue_s == pytest.approx(2.231)
        assert few.facts()["handover_s"] == pytest.approx(0.78)
        assert few.ttft_s == pytest.approx(2.231 + 0.109) and few.generation_s == pytest.approx(0.78 + 1.04)
        many = replace(few, disaggregated=replace(few.disaggregated, prefill_places=64.0))  # type: ignore[attr-defined]
        assert many.ttft_s == pytest.approx(0.109) and many.queue_s == pytest.approx(0.0)
        assert many.generation_s == pytest.approx(3.011 + 1.04)
        assert e2e_s(many) == pytest.approx(4.16)

    def test_requests_wait_for_a_link_after_their_first_token(self) -> None:
        """4 users, 1 GB at 1 GB/s: one request per second, E2E = 4 s, TTFT = t_p = 10 + 0.1 x 990 = 109 ms."""
        times = request_times(Disaggregated(link_bytes_per_s=1e9), request_of(4, 990, 11), example_replica())
        assert times.ttft_s == pytest.approx(0.109) and e2e_s(times) == pytest.approx(4.0)

    def test_requests_wait_for_prefill_before_their_first_token(self) -> None:
        """8 users, t_p = 419 ms limits: no wait after the first token, TPOT is a decode step."""
        times = request_times(Disaggregated(), request_of(8, 4090, 101), example_replica())
        assert times.facts()["handover_s"] == 0.0
        assert times.ttft_s == pytest.approx(1.853 + 0.419) and times.tpot_s == pytest.approx(0.0108)

    def test_the_transfer_delays_the_second_token_and_not_the_first(self) -> None:
        slow, fast = (
            request_times(Disaggregated(link_bytes_per_s=link), request_of(1, 1024, 101), example_replica())
            for link in (1e9, np.inf)
        )
        assert slow.ttft_s == fast.ttft_s
        assert slow.generation_s - fast.generation_s == pytest.approx(1.0)  # 1e9 bytes at 1e9 bytes/s


def served_by(model: str, batching: str, **options: Any) -> dict[str, Any]:
    """One point on an A100, ideal times."""
    sizes = {"batch_size": 16, "input_len": 1024, "output_len": 128}
    return answer(model, "a100-sxm", batching=batching, **(sizes | options))


MODELS = ("llama-2-7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma-2-9b", "mamba-2.8b")


@pytest.mark.parametrize("name", [name for name in MODELS if name in models.names()])
class TestModels:
    def test_chunks_keep_linear_flops_and_flash_attention_flops(self, name: str) -> None:
        """One user, so no decode sequences.  The form of latent attention is fixed, as chunks may use another."""
        kept = {"latent_attention": "absorbed"} if "deepseek" in name else {}
        whole, chunks = (
            served_by(name, way, batch_size=1, input_len=2048, **kept)["stages"]["prefill"]
            for way in ("continuous", "chunked,tokens=256")
        )
        logits = [
            op["matmul_flops"] for stage in (whole, chunks) for op in stage["operators"] if op["name"] == "lm_head"
        ]
        assert chunks["matmul_flops"] == pytest.approx(whole["matmul_flops"], rel=1e-9)
        assert logits[0] == logits[1], "the last chunk alone asks for logits"
        assert chunks["traffic_bytes"] > whole["traffic_bytes"], "weights and keys are read again"

    def test_eager_attention_computes_fewer_pairs_in_chunks(self, name: str) -> None:
        """A chunk computes a rectangle up to its own last key; the whole prompt the full square."""
        if not any(op["kind"] == "attention" for op in served_by(name, "static")["stages"]["prefill"]["operators"]):
            pytest.skip("nothing attends")
        kept = {"latent_attention": "absorbed"} if "deepseek" in name else {}
        whole, chunks = (
            served_by(name, way, batch_size=1, attention="eager", **kept)["stages"]["prefill"]["matmul_flops"]
            for way in ("continuous", "chunked,tokens=256")
        )
        assert chunks <= whole

    def test_a_budget_of_all_tokens_makes_one_chunk(self, name: str) -> None:
        whole, chunk = (served_by(name, way, batch_size=1) for way in ("static", "chunked,tokens=100000"))
        assert chunk["serving"]["chunks"] == 1
        for metric in ("ttft_s", "tpot_s", "e2e_s"):
            assert chunk["metrics"][metric] == whole["metrics"][metric]

    def test_a_mixed_step_reads_weights_once(self, name: str) -> None:
        """Dense weights as for the chunk only; experts: the union over all tokens of the step."""
        model = models.load(name)
        both = mixed(chunk(1.0, 256.0, 512.0), decode(15.0, 1024.0))
        read = [weights_read(model.graph(step)) for step in (chunk(1.0, 256.0, 512.0), decode(15.0, 1024.0), both)]
        assert read[2] < read[0] + read[1]
        head = weights_read(model.graph(chunk(1.0, 256.0, 512.0)), ("lm_head",))
        if model.parameters == model.active_parameters:
            one = weights_read(model.graph(chunk(1.0, 271.0, 512.0)))
            assert read[2] - weights_read(model.graph(both), ("lm_head", "embedding")) == pytest.approx(
                one - head - weights_read(model.graph(chunk(1.0, 271.0, 512.0)), ("embedding",))
            )

    def test_max_output_equal_to_the_mean_changes_nothing(self, name: str) -> None:
        plain, named = (served_by(name, way) for way in ("static", "static,longest=128"))
        assert named["serving"] == {"longest_output_tokens": 128, "empty_slots": 0}
        for part in ("metrics", "memory", "stages"):
            assert named[part] == plain[part]

    def test_a_static_batch_waits_for_its_longest_sequence(self, name: str) -> None:
        plain, longer, whole = (
            served_by(name, way, output_len=output)
            for way, output in (("static", 128), ("static,longest=256", 128), ("static", 256))
        )
        assert longer["metrics"]["e2e_s"] == whole["metrics"]["e2e_s"]
        assert longer["metrics"]["output_tokens_per_s"] == pytest.approx(whole["metrics"]["output_tokens_per_s"] / 2)
        assert longer["memory"]["kv_cache_bytes"] == whole["memory"]["kv_cache_bytes"]
        assert longer["metrics"]["output_tokens_per_s"] < plain["metrics"]["output_tokens_per_s"]

    @pytest.mark.parametrize("batching", ["continuous", "chunked", "disaggregated"])
    def test_littles_law_holds_and_single_points_match_the_sweep(self, name: str, batching: str) -> None:
        users = [1, 7, 64]
        swept = analyze(name, "a100-sxm", batch_size=users, input_len=1024, output_len=128, batching=batching)
        for at, batch in enumerate(users):
            point = served_by(name, batching, batch_size=batch)
            assert swept.to_dict(at)["metrics"] == point["metrics"]
            assert swept.to_dict(at)["serving"] == point["serving"]
            rate = point["metrics"]["output_tokens_per_s"] / 128
            assert rate * point["metrics"]["e2e_s"] == pytest.approx(batch)

    def test_an_infinite_link_costs_nothing_and_disaggregated_decode_is_never_slower_than_chunked(
        self, name: str
    ) -> None:
        separate = served_by(name, "disaggregated,link=1000000")
        interleaved = served_by(name, "continuous")
        static = served_by(name, "static", batch_size=16)
        assert separate["serving"]["transfer_s"] < 1e-4
        assert separate["metrics"]["tpot_s"] <= min(
            interleaved["metrics"]["tpot_s"], static["metrics"]["tpot_s"] * 1.001
        )
        assert separate["parallelism"]["devices"] == 2

    def test_scaling_both_pools_and_users_keeps_latencies(self, name: str) -> None:
        one, three = (
            served_by(name, f"disaggregated,prefill={n},decode={n},link=50", batch_size=16 * n) for n in (1, 3)
        )
        assert three["metrics"]["tpot_s"] == pytest.approx(one["metrics"]["tpot_s"], rel=1e-4)
        assert three["metrics"]["output_tokens_per_s_per_device"] == pytest.approx(
            one["metrics"]["output_tokens_per_s_per_device"], rel=1e-4
        )


def test_full_steps_contain_prompts_and_their_answers_in_proportion() -> None:
    """64 users of Llama-3.1-8b: a prompt takes 8.125 steps of 512 tokens, which also decode one answer of 65:
    linear layers process S + n tokens, flash attention the pairs of both."""
    found = answer("llama-3.1-8b", "b200", batch_size=64, input_len=4096, output_len=65, batching="chunked")
    assert found["serving"]["running"] == 64 and found["serving"]["chunks"] == 8.125
    run = {row["name"]: row for row in found["stages"]["prefill"]["operators"]}
    assert run["q_proj"]["flops"] == pytest.approx(2 * 4096**2 * (4096 + 64))
    pairs = 4096 * 4097 / 2 + 64 * (4096 + 63 / 2 + 1)
    assert run["attention"]["matmul_flops"] == pytest.approx(2 * 2 * 4096 * pairs, rel=1e-6)
    weights = 2 * 4096**2
    assert run["q_proj"]["weight_read_bytes"] == pytest.approx(8.125 * weights)
    assert found["serving"]["mixed_step_s"] == pytest.approx(found["stages"]["prefill"]["time_s"] / 8.125)


def weights_read(graph: Graph, names: tuple[str, ...] = ()) -> float:
    """Weight bytes that a pass reads, of all operators or the given ones."""
    return sum(
        float(np.max(op.read_bytes(Role.WEIGHT))) * block.repeats
        for block, op in graph
        if not names or op.name in names
    )


class TestPublished:
    """Trends and bounds stated by the papers."""

    def test_sarathi_chunks_of_512_and_256_lose_little_of_the_prefill(self) -> None:
        """arXiv 2308.16369: at most 10 and 20 %; less on the roofline, where kernels do not lose efficiency with fewer
        rows.  LLaMA 13B has the shapes of Llama-2 13B."""
        whole = served_by("llama-2-13b", "continuous", batch_size=1, input_len=2048)["metrics"]["ttft_s"]
        for tokens, most in ((512, 0.10), (256, 0.20)):
            chunks = served_by("llama-2-13b", f"chunked,tokens={tokens}", batch_size=1, input_len=2048)
            assert 0.0 < 1.0 - whole / chunks["metrics"]["ttft_s"] < most

    def test_sarathi_decode_maximal_batches_raise_the_throughput(self) -> None:
        """arXiv 2308.16369, abstract: up to 1.33 times end to end for LLaMA 13B on an A6000."""
        before, after = (
            answer("llama-2-13b", "a6000", batch_size=6, input_len=1024, output_len=64, batching=way)["metrics"]
            for way in ("continuous", "chunked,tokens=256")
        )
        gain = after["output_tokens_per_s"] / before["output_tokens_per_s"]
        assert 1.0 < gain < 1.4

    def test_sarathi_serve_a_larger_budget_prefills_sooner_and_decodes_slower(self) -> None:
        """arXiv 2403.02310: the budget trades TTFT against the time between tokens."""
        found = [served_by("llama-2-13b", f"chunked,tokens={n}", batch_size=8)["serving"] for n in (256, 512, 1024)]
        steps = [one["mixed_step_s"] for one in found]
        assert steps == sorted(steps)
        first = [one["mixed_step_s"] * one["chunks"] for one in found]
        assert first == sorted(first, reverse=True)

    def test_distserve_a_transfer_takes_less_than_a_decode_step_over_nvlink(self) -> None:
        """arXiv 2401.09670: the cache of a request of 512 tokens of OPT-66B takes 1.13 GB (2 x 64 x 9216 x 512 x 2
        bytes, 1.125 GiB)."""
        found = answer("opt-66b", "a100-sxm", batching="disaggregated", input_len=512, tensor_parallel_size=4)
        assert found["serving"]["transfer_bytes"] * 4 == pytest.approx(2 * 64 * 9216 * 512 * 2)
        assert found["serving"]["transfer_s"] < found["serving"]["decode_step_s"]


#: A round of five verified tokens, of which 1 + 0.8 + ... + 0.8^4 = 3.3616 are kept.
DRAFT = "draft=tinyllama-1.1b,tokens=4,acceptance=0.8"


class TestSpeculation:
    """Rounds of drafts and one verification pass under every batching."""

    def test_a_chunk_leaves_room_for_all_verified_tokens(self) -> None:
        # 8 sequences of 5 tokens: 512 - 7 x 5 = 477 prompt tokens, 3 steps; 7 x 3 of 50 rounds are mixed
        found = plan_chunks(8.0, 1024.0, 50.0, 512.0, 5.0)
        assert (found.chunk_tokens, found.chunks, found.mixed, found.decodes) == (477.0, 3.0, 21.0, 7.0)
        assert found.share == pytest.approx(24 / 53)
        # 64 sequences: 512 - 63 x 5 = 197 and 21 steps, 64 x 21 > 16 + 21: every step is mixed, and a prompt of 4096
        # with 16 rounds of 5 tokens takes (4096 + 80) / 512 of them
        full = plan_chunks(64.0, 4096.0, 16.0, 512.0, 5.0)
        assert (full.chunks, full.mixed) == pytest.approx((4176 / 512, 16.0))

    def test_a_mixed_step_verifies_the_drafts_of_running_sequences(self) -> None:
        found = analyze("llama-2-7b", "a100", batch_size=8, input_len=1024, batching="chunked,tokens=512",
                        speculative=DRAFT).analysis  # fmt: skip
        prompt, decoding = found.schedule.step.groups
        chunks = found.schedule.prefill_passes
        assert np.asarray(decoding.new_tokens)[:chunks].tolist() == [5.0] * chunks
        tokens = np.asarray(prompt.new_tokens + decoding.batch_size * decoding.new_tokens)[:chunks]
        assert tokens.max() == 512.0

    def test_a_mixed_step_also_drafts(self) -> None:
        # three mixed steps, each with the 4 draft passes of a round, and the draft's own prefill of the prompt
        found = analyze("llama-2-7b", "a100", batch_size=8, input_len=1024, batching="chunked,tokens=512",
                        speculative=DRAFT).analysis  # fmt: skip
        ((_, drafting),) = found.drafts
        a_pass = float(drafting.schedule.decode_sum(drafting.step_s)[0]) / 127
        beside = float((found.prefill_s - found.own_prefill_s - drafting.own_prefill_s)[0])
        assert beside == pytest.approx(3 * (4 * a_pass + float(np.max(found.system.outside_kernels_s))))

    @pytest.mark.parametrize("batching", ["chunked,tokens=512", "disaggregated", "continuous"])
    @pytest.mark.parametrize("words", [DRAFT, "eagle,tokens=4", "ngram,tokens=4,acceptance=0.5", "medusa"])
    def test_a_single_user_decodes_as_in_a_static_batch(self, batching: str, words: str) -> None:
        sizes: dict[str, Any] = {"batch_size": 1, "input_len": 1024, "output_len": 64, "speculative": words}
        alone = analyze("llama-2-7b", "a100", **sizes).analysis
        served = analyze("llama-2-7b", "a100", batching=batching, **sizes).analysis
        moved = served.times.facts().get("transfer_s", 0.0)
        assert float(served.generation_s[0]) == pytest.approx(float(alone.decode_s[0]) + float(np.max(moved)))

    def test_prompts_move_with_the_cache_of_the_draft(self) -> None:
        # 2 x 32 layers x 4096 and 2 x 22 layers x 256 numbers of 2 bytes per token; none for drafts to be verified
        found = answer("llama-2-7b", "a100", input_len=1000, batching="disaggregated", speculative=DRAFT)
        assert found["serving"]["transfer_bytes"] == 1000 * 2 * (2 * 32 * 4096 + 2 * 22 * 256)

    @pytest.mark.parametrize("batching", ["chunked,tokens=512", "disaggregated"])
    def test_no_draft_tokens_are_plain_decoding_bit_for_bit(self, batching: str) -> None:
        sizes: dict[str, Any] = {"batch_size": 16, "input_len": 1024, "batching": batching}
        none, zero = (
            analyze("llama-2-7b", "a100", speculative=words, **sizes).metrics()
            for words in ("none", "ngram,tokens=0,acceptance=0.5")
        )
        assert none == zero


class TestBadInput:
    @pytest.mark.parametrize(
        ("batching", "message"),
        [
            (
                "chunky",
                "unknown method of batching 'chunky'; allowed: chunked, continuous, disaggregated, static; did",
            ),
            ("chunked,tokens=0", "batching chunked: tokens is '0'; allowed: a whole number from 16"),
            ("chunked,token=512", "did you mean 'tokens'"),
            ("continuous,tokens=512", "takes no parameter, not 'tokens=512'"),
            ("static,longest=8", "longest is '8', the mean output is 128 tokens; allowed: at least the mean"),
            ("disaggregated,prefill=0", "prefill is '0'"),
            ("disaggregated,link=0", "link is '0'; allowed: GB/s above 0"),
            ("disaggregated,link=infinband-ndr", "did you mean 'infiniband-ndr'"),
        ],
    )
    def test_a_wrong_option_text_is_a_one_line_error(self, batching: str, message: str) -> None:
        with pytest.raises(UserError, match=re.escape(message)) as raised:
            served_by("llama-2-7b", batching)
        assert "\n" not in str(raised.value)

    def test_two_token_budgets_are_an_error(self) -> None:
        with pytest.raises(UserError, match="both set the token budget of a step; remove one of them"):
            served_by("llama-2-7b", "chunked,tokens=512", max_num_batched_tokens=256)
        single = served_by("llama-2-7b", "chunked", max_num_batched_tokens=256)
        assert single["serving"]["token_budget"] == 256

    @pytest.mark.parametrize("batching", ["chunked", "disaggregated"])
    def test_unmodelled_combinations_are_rejected(self, batching: str) -> None:
        with pytest.raises(UserError, match="micro-batches of a pipeline are not modelled"):
            served_by("llama-2-7b", batching, pipeline_parallel_size="2,microbatches=4")
        with pytest.raises(UserError, match="branches prefill prompts of their own while others decode"):
            served_by("llama-2-7b", batching, branches="skeleton,outline=8,points=3")

    def test_branches_change_the_number_of_decodes_of_a_mixed_step(self) -> None:
        with pytest.raises(UserError, match="chunks are planned for a constant number of decodes"):
            served_by("llama-2-7b", "chunked", branches="apar,3")

    def test_forks_run_on_a_decode_instance(self) -> None:
        sizes: dict[str, Any] = {"batch_size": 1, "input_len": 512, "output_len": 128, "branches": "apar,3"}
        alone = analyze("llama-2-7b", "a100", **sizes).analysis
        served = analyze("llama-2-7b", "a100", batching="disaggregated", **sizes).analysis
        moved = float(np.max(served.times.facts()["transfer_s"]))  # of the prompt, before it forks
        assert float(served.generation_s[0]) == pytest.approx(float(alone.decode_s[0]) + moved)

    def test_a_chip_without_a_link_is_rejected(self) -> None:
        chip = replace(specs.load("a100-sxm"), links={}, default_link="")
        with pytest.raises(UserError, match="publishes no link; give link="):
            analyze("llama-2-7b", chip, batching="disaggregated")


@pytest.mark.parametrize("batching", ["continuous", "chunked", "disaggregated"])
def test_running_sequences_fit_the_cache_and_the_page_names_the_limit(batching: str) -> None:
    """1,000 users on one card: only as many run as fit the cache; every line fits 80 and 160 columns."""
    result = analyze("llama-2-13b", "a100-sxm", batch_size=1000, input_len=1024, output_len=128, batching=batching)
    assert result.fits
    page = analysis_page.page(result)
    titles = [str(part.title) for part in page if hasattr(part, "title")]
    assert f"Serving: {batching}" in titles
    for width in (80, 160):
        text = terminal.text(page, Screen(width=width, colour=False))
        assert max(map(len, text.splitlines())) <= width


def test_calibrated_answers_have_intervals_under_every_batching() -> None:
    for batching in ("continuous", "chunked", "disaggregated", "static,longest=64"):
        found = lv.analyze(
            "llama-2-7b", "h100-sxm", batch_size=8, input_len=256, output_len=32, batching=batching, engine="vllm"
        ).to_dict()
        for name, levels in found["metrics"]["intervals"].items():
            low, high = levels["80"]
            assert low <= found["metrics"][name] <= high or name == "ttft_s"


def test_a_batching_policy_without_report_texts_is_still_reported() -> None:
    """A new policy needs only its file and a registry entry; report texts are optional."""
    found = {"batching": "rolling", "serving": {"queue_s": 0.25, "bound": "link"}, "workload": {"batch_size": 8}}
    (facts,) = serving.serving(found)
    assert facts.lines == (("Users", "8"), ("queue s", "0.25"), ("bound", "link"))
    assert serving.is_steady_state(found)


def test_answers_of_one_token_are_no_faster_than_their_prompts() -> None:
    """200 prompts of 64 tokens share the device: as many requests per second as with a second token, within 10 %."""
    one, two = (
        lv.analyze(
            "llama-2-7b",
            "a100-80gb-sxm",
            engine="vllm",
            batching="continuous",
            batch_size=200,
            input_len=64,
            output_len=n,
        )
        for n in (1, 2)
    )
    rates = [answer.to_dict()["metrics"]["output_tokens_per_s"] / n for n, answer in ((1, one), (2, two))]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)
    assert one.to_dict()["metrics"]["ttft_s"] == pytest.approx(200 / rates[0], rel=0.01)


def test_the_most_prompts_of_several_ranks() -> None:
    """Ranks of which each has a prompt in a step with the chance q have one with 1 - (1 - q)^d.

    Poisson numbers with the mean 1, cut at 2, are 0, 1 and 2 with 1/e, 1/e and 1 - 2/e; the larger of two is 0 with
    1/e^2, at most 1 with 4/e^2; where a given one is not 0, the larger is 1 with 1/e x 2/e over 1 - 1/e.
    """
    q = np.array([0.01, 0.2, 0.9])
    largest, own = most_of(-np.log1p(-q), 4, 1.0)
    np.testing.assert_allclose(largest, 1.0 - (1.0 - q) ** 4)
    np.testing.assert_allclose(own, 1.0)
    e = np.e
    largest, own = most_of(np.ones(1), 2, 2.0)
    assert largest[0] == pytest.approx((1.0 - 1.0 / e**2) + (1.0 - 4.0 / e**2))
    assert own[0] == pytest.approx(1.0 + (1.0 - (1.0 / e) * (2.0 / e) / (1.0 - 1.0 / e)))
    largest, _ = most_of(np.array([0.3, 5.0, 40.0]), 1, 1e9)
    np.testing.assert_allclose(largest, [0.3, 5.0, 40.0], rtol=1e-6)


def test_ranks_wait_for_the_one_that_prefills() -> None:
    """Eleven users on each of two ranks, 100 steps of 10 ms: a prompt of 60 ms comes every 10 steps to each rank.

    Half of a prompt's 50 ms beside its step is work on the tokens of both ranks.  Arriving: 11 / 101 a step, 1.0527 on
    the rank with the most over it, and 1 - (1 - q)^2; each prompt takes others 25 ms (E[max] / E[N] - 1) longer.
    """
    request = request_of(11.0, 100.0, 101.0)
    running = continuous.Continuous().admit(request, example_replica())
    assert running is not None
    alone = RequestTimes(prefill_s=np.array([0.06]), decode_s=np.array([1.0]), steps=np.array([100.0]), request_s=0.0)
    one = continuous.Continuous().times(alone, running, 11.0)
    two = continuous.Continuous().times(replace(alone, ranks=2, growing=0.5), running, 11.0)
    mean = 11.0 / 101.0
    both = sum(1.0 - (np.exp(-mean) * sum(mean**k / factorial(k) for k in range(n + 1))) ** 2 for n in range(20))
    waits_s = 11.0 * 0.5 * (0.05 / one.prompts_per_pass) * (both / mean - 1.0)
    assert e2e_s(two) - e2e_s(one) == pytest.approx(waits_s[0], rel=0.02)
    assert float(two.waits_s[0]) > 0.2
    assert e2e_s(two) == pytest.approx(float(two.cycle_s[0]))
    assert float(two.ttft_s[0]) < float(one.ttft_s[0])  # experts have the tokens of one rank, not those of both


def test_a_queue_for_slots_is_as_far_off_as_the_whole_cycle() -> None:
    """20 times as many users as the cache holds: nearly all of the first token is other requests' cycles."""
    bounds, values = {}, {}
    for users in (8, 20000):
        found = lv.analyze(
            "llama-3.1-8b", "h100", engine="vllm", batching="continuous", batch_size=users, output_len=128
        )
        values[users] = {name: float(getattr(found, name)) for name in ("ttft_s", "e2e_s")}
        bounds[users] = {name: np.array(found.intervals()[name]["80"]) / value for name, value in values[users].items()}
    assert values[20000]["ttft_s"] > 0.9 * values[20000]["e2e_s"]
    np.testing.assert_allclose(bounds[20000]["ttft_s"], bounds[20000]["e2e_s"], rtol=0.02)
    assert abs(bounds[8]["ttft_s"] - bounds[8]["e2e_s"]).max() > 0.05
