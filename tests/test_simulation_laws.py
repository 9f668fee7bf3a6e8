"""Laws that hold for every server: conservation, Little's law, waiting times of queues, the steady state of analyze."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.serving.scheduling import POLICIES, SCHEDULERS
from llmviewer.simulation import statistics as stats
from llmviewer.simulation.fleet import ROUTERS, Fleet, RoundRobin
from llmviewer.simulation.requests import Requests
from llmviewer.simulation.run import Outcome, simulate_requests
from tests.simulated import Cache, Linear, fleet, poisson, requests

#: A server that answers one request at a time, in 1 s for each output token after the first.
ONE_AT_A_TIME = (Linear(step=0.0, sequence=1.0, cached=0.0, prompt=0.0, pair=0.0), Cache(max_sequences=1))


@st.composite
def loads(draw: st.DrawFn) -> Requests:
    count = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.floats(0.0, 0.3), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(1, 400), min_size=count, max_size=count))
    answers = draw(st.lists(st.integers(1, 80), min_size=count, max_size=count))
    users = draw(st.sampled_from([0, 0, 1, 3, 50]))
    asked = requests(list(np.cumsum(gaps)) if not users else [0.0] * count, prompts, answers, users)
    if draw(st.booleans()):
        names = draw(st.lists(st.lists(st.integers(0, 6), min_size=0, max_size=6), min_size=count, max_size=count))
        kept = tuple(tuple(10 * at + one for at, one in enumerate(each)) for each in names)
        asked = replace(asked, prefixes=kept, prefix_tokens=64)
    if not users and draw(st.booleans()):
        turns = draw(st.sets(st.integers(1, count))) - {count}
        asked = replace(asked, after={at: (draw(st.integers(0, at - 1)), 0.02 * at) for at in sorted(turns)})
    return asked


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    room = Cache(
        blocks=draw(st.sampled_from([32, 60, 10**5])),
        sequence_blocks=draw(st.sampled_from([0, 0, 2])),
        max_sequences=draw(st.integers(1, 20)),
        token_budget=draw(st.integers(40, 700)),
    )
    scheduler = draw(st.sampled_from(list(SCHEDULERS)))
    shares = draw(st.sampled_from([(1.0,), (1.0,), (0.5, 0.5), (0.2, 0.5, 0.3)]))
    prices = Linear(tokens_per_round=draw(st.sampled_from([1.0, 1.0, 2.6])), shares=shares)
    router, replicas = draw(st.sampled_from(list(ROUTERS.values()))), draw(st.integers(1, 3))
    served = fleet(prices, room, scheduler, router=router, replicas=replicas, stages=len(shares))
    if draw(st.booleans()):
        return served
    decode = replace(served.prefill, replicas=draw(st.integers(1, 2)))
    return Fleet(
        prefill=replace(served.prefill, prices=Linear(shares=shares)),
        decode=decode,
        transfer_s=lambda tokens: 1e-4 * tokens,
    )


def totals(outcome: Outcome) -> tuple[float, float]:
    steps = sum(float((line.steps * line.decoding).sum()) for line in outcome.timelines)
    return steps, float(outcome.gaps.weights.sum())


def gaps_beyond_rounds(preemptions: Array, tokens: float) -> tuple[float, float]:
    """The least and the most by which times between tokens outnumber the rounds without preemptions.

    A request of R rounds of T tokens that is preempted m times, after s_1 ... s_m rounds, has S = s_1 + ... + s_m of
    them and m tokens computed again by then, each with a gap.  The event loop counts g = ceil(s_1 T) + ... +
    ceil(s_m T) + m - 1 tokens of R T as generated before the last of these tokens, which stands for a round:
    R - ceil(g / T) - 1 rounds are left.  So it has R + S + m - 1 - ceil(g / T) gaps: R with T = 1, where g = S + m - 1.
    Otherwise S T + m - 1 <= g < S T + 2 m - 1: at most m - 1 - ceil((m - 1) / T) gaps more than R, none before the
    third preemption, and at most m fewer.
    """
    if tokens == 1.0:
        return 0.0, 0.0
    again = np.maximum(preemptions - 1.0, 0.0)
    return -float(preemptions.sum()), float((again - np.ceil(again / tokens)).sum())


@settings(max_examples=100, deadline=None)
@given(asked=loads(), served=fleets())
def test_tokens_and_blocks_are_conserved(asked: Requests, served: Fleet) -> None:
    outcome = simulate_requests(asked, served)
    records, accepted = outcome.records, outcome.records.refused == 0
    answered = records.output_len[accepted]
    rounds = np.ceil((answered - 1.0) / served.answering.prices.tokens_per_round)
    assert not np.isnan(records.finish_s[accepted]).any()
    assert np.isnan(records.finish_s[~accepted]).all()
    # a sequence that is preempted generates one token by computing its tokens again, not in a decode step; with
    # several tokens per step, the step in which it is preempted may count for more than it generated
    preemptions, several = records.preemptions[accepted], served.answering.prices.tokens_per_round > 1.0
    recomputed = float(preemptions.sum()) * (2.0 if several else 1.0)
    steps, gaps = totals(outcome)
    assert steps <= rounds.sum() <= steps + recomputed
    assert -1e-6 <= gaps - steps <= preemptions.sum() + 1e-6
    least, most = gaps_beyond_rounds(preemptions, served.answering.prices.tokens_per_round)
    assert least - 1e-6 <= gaps - rounds.sum() <= most + 1e-6
    if not recomputed:
        assert steps == rounds.sum()
    ordered = (records.arrival_s, records.start_s, records.first_token_s, records.finish_s)
    for earlier, later in pairwise(ordered):
        assert (earlier[accepted] <= later[accepted] + 1e-12).all()
    for line, blocks in zip(outcome.timelines, outcome.blocks, strict=True):
        assert (line.used_blocks >= 0).all()
        assert (line.used_blocks <= blocks).all()
        assert (line.start_s[1:] >= line.end_s[:-1] - 1e-12).all()


def test_a_sequence_that_is_stalled_and_then_preempted_has_one_gap() -> None:
    """Prompts stall ten sequences, of which one is preempted before the next decode step: nine of them have a gap."""
    prompts = [1, 1, 256, 272, *[1] * 18, 48, 48, 208, 1, 1]
    answers = [1, 1, 2, 2, *[1] * 14, *[2] * 7, 1, 1]
    room = Cache(blocks=60, max_sequences=10, token_budget=40)
    asked = requests([0.0] * len(prompts), prompts, answers, concurrency=50)
    outcome = simulate_requests(asked, fleet(room=room, scheduler="vllm-v0"))
    assert outcome.records.preemptions.sum() == 1.0
    assert totals(outcome) == (8.0, 9.0)


def test_a_third_preemption_may_add_a_gap_where_rounds_have_several_tokens() -> None:
    """Rounds of 2.6 tokens: 37 + 14 + 7 of them without preemptions; the last request is preempted three times."""
    room = Cache(blocks=22, max_sequences=10, token_budget=263)
    served = fleet(Linear(tokens_per_round=2.6), room, "vllm-v0")
    outcome = simulate_requests(requests([0.0] * 3, [16, 149, 155], [95, 35, 18]), served)
    preemptions = outcome.records.preemptions
    assert preemptions.tolist() == [0, 0, 3]
    assert gaps_beyond_rounds(preemptions, 2.6) == (-3.0, 1.0)
    assert totals(outcome) == (56.0, 37.0 + 14.0 + 7.0 + 1.0)


@settings(max_examples=100, deadline=None)
@given(asked=loads(), served=fleets())
def test_times_between_tokens_add_up_to_the_time_of_generation(asked: Requests, served: Fleet) -> None:
    outcome = simulate_requests(asked, served)
    records, gaps = outcome.records, outcome.gaps
    if not records.preemptions.any():
        generated_s = float(np.nansum(records.finish_s - records.first_token_s))
        assert float((gaps.gap_s * gaps.weights).sum()) == pytest.approx(generated_s, rel=1e-9, abs=1e-9)


def test_a_sequence_preempted_before_its_first_decode_step_has_each_gap_once() -> None:
    room = Cache(blocks=32, sequence_blocks=2, max_sequences=2, token_budget=40)
    pool = fleet(Linear(), room).prefill
    served = Fleet(prefill=pool, decode=pool, transfer_s=lambda tokens: 1e-4 * tokens)
    outcome = simulate_requests(requests([0.0] * 6, [1, 1, 22, 1, 352, 80], [1, 1, 8, 15, 2, 2]), served)
    records, gaps = outcome.records, outcome.gaps
    assert records.preemptions.sum() == 1
    assert gaps.weights.sum() == (records.output_len - 1).sum() == 23
    assert gaps.gap_s @ gaps.weights == pytest.approx((records.finish_s - records.first_token_s).sum(), rel=1e-9)


def test_idle_time_is_no_time_between_tokens() -> None:
    gaps = simulate_requests(requests([0.0, 100.0], 64, 5), fleet()).gaps
    assert gaps.gap_s.max() < 0.02


@settings(max_examples=50, deadline=None)
@given(asked=loads(), served=fleets())
def test_no_block_is_lost(asked: Requests, served: Fleet) -> None:
    from llmviewer.simulation.run import Driven, drive

    reasons = simulate_requests(asked, served).records.refused
    driven = Driven.of(asked.select(np.flatnonzero(reasons == 0)), served)
    drive(driven)
    for replica in driven.replicas:
        assert replica.pool.free == replica.pool.total
        assert not replica.running
        assert not replica.waiting


@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
@pytest.mark.parametrize("users", [0, 32])
def test_littles_law_holds_within_one_percent(scheduler: str, users: int) -> None:
    asked = replace(poisson(20.0, 2000), concurrency=users)
    outcome = simulate_requests(asked, fleet(scheduler=scheduler, replicas=2))
    records, length = outcome.records, float(outcome.records.finish_s.max())
    present = sum(
        float(((line.end_s - line.start_s) * line.decoding).sum()) for line in outcome.timelines
    )  # decoding; requests in prefill and in the queue are those of no decode step
    window = stats.whole_run(records)
    load = stats.load(outcome, window)
    in_system = load["running_mean"] + load["waiting_mean"]
    assert in_system == pytest.approx(len(records) / length * records.e2e_s.mean(), rel=0.01)
    assert present / length <= load["running_mean"] * 1.01


def waits(arrivals: Array, services: Array) -> Array:
    """Waiting times of a queue with one server, by Lindley's recursion W' = max(W + S - A, 0)."""
    walk = np.append(0.0, np.cumsum(services[:-1] - np.diff(arrivals)))
    return walk - np.minimum.accumulate(walk)


@pytest.mark.parametrize("utilization", [0.5, 0.8, 0.95])
def test_one_server_waits_as_lindleys_recursion_says(utilization: float) -> None:
    asked = poisson(utilization, 5000, prompts=1)
    answers = np.rint(np.random.default_rng(1).exponential(100.0, len(asked))).astype(np.int64) + 1
    prices, room = replace(ONE_AT_A_TIME[0], sequence=0.01), ONE_AT_A_TIME[1]
    records = simulate_requests(replace(asked, output_len=answers), fleet(prices, room)).records
    np.testing.assert_allclose(records.queue_s, waits(asked.arrival_s, 0.01 * (answers - 1.0)), atol=1e-6)


@pytest.mark.parametrize(("utilization", "count"), [(0.5, 40000), (0.7, 60000)])
def test_one_server_with_equal_answers_waits_as_an_m_d_1_queue(utilization: float, count: int) -> None:
    # answers of 2 tokens take 1 s; the mean wait is utilization / (2 (1 - utilization)) s
    asked = poisson(utilization, count, prompts=1, answers=2, seed=1)
    asked = replace(asked, arrival_s=asked.arrival_s * (count / utilization / asked.arrival_s[-1]))  # its very rate
    wait_s = simulate_requests(asked, fleet(*ONE_AT_A_TIME)).records.queue_s.mean()
    assert wait_s == pytest.approx(utilization / (2.0 * (1.0 - utilization)), rel=0.02)


@pytest.mark.parametrize("utilization", [0.5])
def test_one_server_with_exponential_answers_waits_as_an_m_m_1_queue(utilization: float) -> None:
    # answers of mean 100 tokens of 10 ms: the mean wait is utilization / (1 - utilization) x 1 s
    count = 100000
    asked, random = poisson(utilization, count, prompts=1, seed=1), np.random.default_rng(100)
    answers = np.rint(random.exponential(100.0, count))
    scale = count * 100.0 / answers.sum()
    asked = replace(asked, arrival_s=asked.arrival_s * (count / utilization / asked.arrival_s[-1] / scale))
    prices, room = replace(ONE_AT_A_TIME[0], sequence=0.01 * scale), ONE_AT_A_TIME[1]
    records = simulate_requests(replace(asked, output_len=answers.astype(np.int64) + 1), fleet(prices, room)).records
    assert records.queue_s.mean() == pytest.approx(utilization / (1.0 - utilization), rel=0.02)


def test_evenly_spaced_requests_below_capacity_never_wait() -> None:
    asked = requests(np.arange(200) * 1.5, 1, 2)
    assert simulate_requests(asked, fleet(*ONE_AT_A_TIME)).records.queue_s.max() == pytest.approx(0.0, abs=1e-9)


#: Models on chips, with the options of a server.
SERVERS = (
    ("llama-3.1-8b", "h100-sxm", {"engine": "vllm"}),
    ("llama-3.1-70b", "h100-sxm", {"engine": "vllm", "tensor_parallel_size": 4}),
    ("llama-3.1-8b", "b200", {"engine": "trtllm", "quantization": "nvfp4"}),
    ("llama-3.1-8b", "h200", {"engine": "sglang"}),
    ("llama-3.1-8b", "h100-sxm", {"engine": "trtllm-cpp"}),
    ("llama-3.1-8b", "m4-max", {"engine": "llama.cpp", "quantization": "q4_k_m", "max_num_seqs": 8}),
    ("qwen3-30b-a3b", "h200", {"engine": "vllm", "data_parallel_size": 4, "expert_parallel_size": 4}),
)
#: Users, prompt and answer: rare prompts, several in a pass, more than the cache or a step holds, several steps each.
CLOSED = ((1, 1024, 128), (16, 1024, 1024), (64, 1155, 211), (2048, 778, 129), (8, 8192, 512), (64, 128, 512))


@pytest.mark.parametrize(("model", "hardware", "options"), SERVERS)
@pytest.mark.parametrize(("users", "prompt", "answer"), CLOSED)
def test_a_closed_loop_is_the_steady_state_of_analyze(
    model: str, hardware: str, options: dict[str, object], users: int, prompt: int, answer: int
) -> None:
    """Answers from half of the mean to one and a half times it; equal ones let users fall in step.

    Ranks that share experts have a user each at least: analyze takes all of them for as full as the fullest one.
    """
    batching = {**options, "batching": "continuous"}
    ranks = int(str(options.get("data_parallel_size", 1)))
    users = max(users, ranks)
    steady = lv.analyze(model, hardware, batch_size=users, input_len=prompt, output_len=answer, **batching)  # type: ignore[arg-type]
    lengths = f"uniform,low={answer - answer // 2},high={answer + answer // 2}"
    made = lv.simulate(model, hardware, concurrency=users, input_len=prompt, output_len=lengths, **batching).to_dict()
    assert made["requests_per_s"] == pytest.approx(users / steady.e2e_s, rel=0.05)
    assert made["e2e_s"]["mean"] == pytest.approx(steady.e2e_s, rel=0.05)
    assert made["tpot_s"]["mean"] == pytest.approx(steady.tpot_s, rel=0.05)
    assert made["ttft_s"]["mean"] == pytest.approx(steady.ttft_s, rel=0.05 if ranks == 1 else 0.08)


def test_mixed_steps_in_a_closed_loop_are_the_steady_state_of_chunked_batching() -> None:
    options = {"engine": "vllm", "batching": "chunked"}
    steady = lv.analyze("llama-3.1-8b", "h100-sxm", batch_size=16, input_len=1024, output_len=1024, **options)
    lengths = "uniform,low=512,high=1536"
    made = lv.simulate("llama-3.1-8b", "h100-sxm", concurrency=16, input_len=1024, output_len=lengths, **options)
    assert made.to_dict()["requests_per_s"] == pytest.approx(16 / steady.e2e_s, rel=0.03)
    assert made.to_dict()["tpot_s"]["mean"] == pytest.approx(steady.tpot_s, rel=0.03)


def test_a_burst_is_what_analyze_says_of_one() -> None:
    """Users who begin together: the mean of their first tokens, which the steady state names beside its own."""
    for engine, users in (("vllm", 64), ("sglang", 64), ("trtllm", 32)):
        steady = lv.analyze("llama-3.1-8b", "h100", engine=engine, batching="continuous", batch_size=users)
        made = lv.simulate("llama-3.1-8b", "h100", engine=engine, concurrency=users, burst=True, requests=users)
        told = steady.to_dict()["serving"]["burst_ttft_s"]
        assert made.to_dict()["ttft_s"]["mean"] == pytest.approx(told, rel=0.1)


def test_shared_prefixes_are_computed_once() -> None:
    # 128 of 160 prompt tokens are two shared blocks of 64: every request but the first finds them
    asked = replace(requests(np.arange(50) * 1.0, 160, 4), prefixes=((1, 2),) * 50, prefix_tokens=64)
    records = simulate_requests(asked, fleet()).records
    assert records.cached_tokens.tolist() == [0, *[128] * 49]
    assert records.ttft_s[1] < records.ttft_s[0]


@pytest.mark.parametrize("layout", [{}, {"replicas": 2}, {"decode": True}])
def test_a_turn_is_sent_a_delay_after_the_one_before_it_ends(layout: dict[str, object]) -> None:
    """Three tokens take 2 s; 1.5 s later the next turn is sent, and 0.5 s after its 1 s the last."""
    layout = dict(layout)  # that of the parameters stays as it is
    decode = layout.pop("decode", None)
    served = fleet(*ONE_AT_A_TIME, **layout)
    served = replace(served, decode=served.prefill, transfer_s=lambda tokens: 0.0) if decode else served
    asked = replace(requests([0.0, 0.0, 0.0], 1, [3, 2, 2]), after={1: (0, 1.5), 2: (1, 0.5)})
    records = simulate_requests(asked, served).records
    assert records.arrival_s.tolist() == pytest.approx([0.0, 3.5, 5.0])
    assert records.finish_s.tolist() == pytest.approx([2.0, 4.5, 6.0])
    chosen = asked.select(np.array([0, 2]))
    assert chosen.after == {1: (0, 0.5)}  # the turn between them is refused: the next one follows the first


@pytest.mark.parametrize(("block", "found"), [(16, 128), (64, 128), (48, 96), (80, 80), (128, 128), (256, 0)])
def test_blocks_larger_than_those_of_a_trace_hold_its_prefixes(block: int, found: int) -> None:
    """Prompts of 160 tokens of which 128 are equal, in blocks of 16: whole blocks of the engine within these."""
    names = tuple((*range(8), 100 + 2 * at, 101 + 2 * at) for at in range(20))
    asked = replace(requests(np.arange(20) * 1.0, 160, 4), prefixes=names, prefix_tokens=16)
    records = simulate_requests(asked, fleet(room=Cache(block_tokens=block))).records
    assert records.cached_tokens.tolist() == [0, *[found] * 19]


def test_a_small_cache_evicts_the_prefixes_used_least_recently() -> None:
    # eight prefixes of 4 blocks in turn, in a cache of 16 blocks: each is evicted before it is used again
    names = tuple((one % 8,) for one in range(80))
    asked = replace(requests(np.arange(80) * 1.0, 80, 2), prefixes=names, prefix_tokens=64)
    records = simulate_requests(asked, fleet(room=Cache(blocks=16))).records
    assert records.cached_tokens.sum() == 0
    roomy = simulate_requests(asked, fleet(room=Cache(blocks=160))).records
    assert roomy.cached_tokens.sum() == 72 * 64


def test_a_prefix_aware_router_finds_more_than_round_robin() -> None:
    random = np.random.default_rng(0)
    names = tuple((int(one),) for one in random.integers(0, 30, 2000))
    asked = replace(poisson(40.0, 2000, prompts=600, answers=20), prefixes=names, prefix_tokens=512)
    room = Cache(blocks=600)
    found = {
        name: simulate_requests(asked, fleet(room=room, router=router, replicas=4)).records.cached_tokens.sum()
        for name, router in ROUTERS.items()
    }
    assert found["prefix-aware"] > 1.5 * found["round-robin"]


def test_the_least_loaded_replica_makes_requests_wait_less() -> None:
    asked = replace(poisson(60.0, 4000), output_len=np.random.default_rng(1).integers(1, 400, 4000))
    ttft = {
        name: simulate_requests(
            asked, fleet(room=Cache(max_sequences=40), router=ROUTERS[name], replicas=4)
        ).records.ttft_s.mean()
        for name in ("round-robin", "least-loaded")
    }
    assert ttft["least-loaded"] < ttft["round-robin"]


def test_decodes_do_not_delay_the_prompts_of_another_pool() -> None:
    asked = poisson(10.0, 500, answers=400)
    one = fleet()
    split = Fleet(prefill=one.prefill, decode=one.prefill)
    alone = simulate_requests(replace(asked, output_len=np.ones(500, dtype=np.int64)), one)
    np.testing.assert_allclose(simulate_requests(asked, split).records.ttft_s, alone.records.ttft_s)


def test_a_transfer_delays_the_second_token() -> None:
    one = fleet()
    split = Fleet(prefill=one.prefill, decode=one.prefill, transfer_s=lambda tokens: 0.001 * tokens)
    whole, moved = (simulate_requests(requests([0.0], 100, 5), served).records for served in (one, split))
    assert moved.finish_s[0] - whole.finish_s[0] == pytest.approx(0.1)
    assert moved.first_token_s[0] == whole.first_token_s[0]


def test_a_request_that_fits_nowhere_is_refused_and_changes_nothing() -> None:
    asked = requests([0.0, 1.0, 2.0], [100, 10**6, 100], 5)
    served = fleet(room=Cache(blocks=100))
    records = simulate_requests(asked, served).records
    without = simulate_requests(asked.select(np.array([0, 2])), served).records
    assert records.refused.tolist() == [0, 2, 0]
    np.testing.assert_array_equal(records.finish_s[[0, 2]], without.finish_s)


@pytest.mark.parametrize("users", [1, 7, 30])
def test_a_closed_loop_keeps_its_number_of_requests(users: int) -> None:
    asked = requests([0.0] * 100, 64, 20, concurrency=users)
    records = simulate_requests(asked, fleet(replicas=3)).records
    times = np.sort(records.arrival_s)[users:-users]
    present = stats.in_system(records, times[times < records.arrival_s.max()])
    assert set(present.tolist()) <= {users}


def ranked(step: float = 0.01, prompt: float = 1e-4, **more: object) -> Fleet:
    """Two ranks; a step takes 10 ms, of which 4 ms are for experts, and 0.1 ms for each prompt token, half for them."""
    prices = Linear(step=step, sequence=0.0, cached=0.0, prompt=prompt, pair=0.0, shared_step=0.004, shared_token=5e-5)
    return fleet(prices, replicas=2, ranks=2, **more)


def test_a_rank_without_prompts_waits_for_the_one_that_has_some() -> None:
    """Request 0 decodes on rank 0 while rank 1 computes the 100 tokens of request 1.

    That step takes what rank 1 computes alone, 10 - 4 ms and 50 us for each of 100 tokens, and what the experts do for
    both: 4 ms, and 50 us for the mean of 0 and 100 tokens.
    """
    records = simulate_requests(requests([0.0, 0.2], 100, [100, 10]), ranked()).records
    assert records.ttft_s[0] == pytest.approx(0.006 + 0.005 + 0.004 + 0.0025)
    steps_s = 0.0175 + 99 * 0.010 + (0.0175 - 0.010)  # its own prompt, its decode steps, of which one takes longer
    assert records.finish_s[0] == pytest.approx(steps_s)
    begun = 0.0175 + 19 * 0.010  # the first step after 0.2 s
    assert records.finish_s[1] - begun == pytest.approx(0.0175 + 9 * 0.010)


def test_ranks_that_compute_prompts_in_the_same_step_wait_for_the_longer_one() -> None:
    """Prompts of 100 and 300 tokens: rank 1 alone 6 ms + 15 ms, experts 4 ms + 50 us x 200."""
    records = simulate_requests(requests([0.0, 0.0], [100, 300], [1, 1]), ranked()).records
    assert records.ttft_s.tolist() == pytest.approx([0.035, 0.035])


@settings(max_examples=60, deadline=None)
@given(asked=loads(), scheduler=st.sampled_from(list(SCHEDULERS)), router=st.sampled_from(list(ROUTERS.values())))
def test_ranks_step_together(asked: Requests, scheduler: str, router: object) -> None:
    """Steps that overlap are the same steps, and every request is answered."""
    room = Cache(blocks=60, max_sequences=6, token_budget=450)
    outcome = simulate_requests(asked, ranked(room=room, scheduler=scheduler, router=router))
    records = outcome.records
    assert not np.isnan(records.finish_s[records.refused == 0]).any()
    for start, end in zip(outcome.timelines[0].start_s, outcome.timelines[0].end_s, strict=True):
        other = outcome.timelines[1]
        at = np.flatnonzero((other.start_s < end) & (other.end_s > start))
        assert other.start_s[at].tolist() in ([], [start])
        assert other.end_s[at].tolist() in ([], [end])


@settings(max_examples=60, deadline=None)
@given(
    asked=loads(),
    replicas=st.integers(2, 4),
    ranks=st.sampled_from([1, 2]),
    scheduler=st.sampled_from(list(SCHEDULERS)),
)
def test_replicas_that_run_ahead_of_each_other_answer_as_in_step(
    asked: Requests, replicas: int, ranks: int, scheduler: str
) -> None:
    """A router in turn needs no state of the replicas; with one that asks for it, all run up to each arrival."""
    turns = {at: (before, delay_s + 0.01 + 1e-5 * at**0.5) for at, (before, delay_s) in asked.after.items()}
    asked = replace(asked, after=turns)
    one = ranked() if ranks == 2 else fleet(Linear(), Cache(blocks=200, max_sequences=8), scheduler)
    served = replace(one, prefill=replace(one.prefill, replicas=replicas * ranks))
    waiting = replace(served, prefill=replace(served.prefill, router=lambda: RoundRobin(waits=True)))
    ahead, stepped = (simulate_requests(asked, each).records for each in (served, waiting))
    np.testing.assert_allclose(ahead.finish_s, stepped.finish_s, rtol=1e-9)
    assert ahead.replica.tolist() == stepped.replica.tolist()


def test_the_queue_of_a_policy_is_in_its_order() -> None:
    """One at a time, 1 s each; while the first runs, prompts of 30, 10 and 20 tokens and answers of 2, 3 and 4 come.

    The second request ends first or last by the length of its prompt, and of its answer.
    """
    asked = requests([0.0, 0.1, 0.2, 0.3], [5, 30, 10, 20], [2, 2, 3, 4])
    one = fleet(*ONE_AT_A_TIME, "sglang")
    order = {
        policy: np.argsort(simulate_requests(asked, one.with_policy(policy)).records.finish_s).tolist()
        for policy in POLICIES
    }
    assert order == {"fcfs": [0, 1, 2, 3], "shortest-prompt": [0, 2, 3, 1], "longest-answer": [0, 3, 2, 1]}


@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
def test_a_policy_that_an_engine_does_not_have_is_refused(scheduler: str) -> None:
    one, known = fleet(scheduler=scheduler), SCHEDULERS[scheduler].policies
    assert known[0] == POLICIES[0]
    for policy in POLICIES:
        if policy in known:
            assert one.with_policy(policy).prefill.scheduler.policy == policy
        else:
            with pytest.raises(UserError, match=f"{policy}.*{scheduler}.*fcfs"):
                one.with_policy(policy)
    with pytest.raises(UserError, match="longest-prompt"):
        one.with_policy("longest-prompt")


@settings(max_examples=40, deadline=None)
@given(asked=loads(), policy=st.sampled_from(POLICIES))
def test_every_order_of_the_queue_answers_every_request(asked: Requests, policy: str) -> None:
    room = Cache(blocks=60, max_sequences=6, token_budget=300)
    records = simulate_requests(asked, fleet(room=room, scheduler="sglang").with_policy(policy)).records
    assert not np.isnan(records.finish_s[records.refused == 0]).any()
