"""Experts of unequal popularity: distinct experts per step, their traffic, and the load of the busiest device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, Role, check
from llmviewer.core.workload import Step, decode, mixed, prefill, verify
from llmviewer.hardware import specs
from llmviewer.layers import feed_forward
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.parallel.sharding import busiest_active_experts
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.sparsity.expert_skew import (
    busiest_rank_experts,
    busiest_rank_share,
    distinct_experts,
    expert_skew,
    run_exponent,
    selection_probabilities,
)

from .answers import analyze

load = functools.cache(models.load)
MIXTURES = tuple(name for name in models.names() if any(op.name == "router" for _, op in load(name)._graph()))


def experts(graph: Graph) -> list[Operator]:
    return [op for _, op in graph if op.name.startswith("expert_") and op.name.endswith("_proj")]


def experts_read(graph: Graph) -> float:
    return float(sum(op.read_bytes(Role.WEIGHT) * block.repeats for block, op in graph))


def test_choice_probabilities_of_2_of_8_experts_at_alpha_1() -> None:
    """Weights 1, 1/2, ... 1/8 sum to H_8 = 2.717857: the first expert is chosen with 2 / 2.717857 = 0.7359, the last
    with an eighth of it."""
    p = selection_probabilities(1.0, 8, 2)
    assert p[0] == pytest.approx(2 / 2.7178571) and p[7] == pytest.approx(p[0] / 8) and p.sum() == pytest.approx(2.0)


def test_a_token_chooses_an_expert_at_most_once() -> None:
    """alpha 3, 2 of 8: 2 / 1.1952 > 1, so the first is always chosen and the others share one choice:
    1/8 / 0.1952 = 0.6405 for the second."""
    p = selection_probabilities(3.0, 8, 2)
    rest = sum(i**-3.0 for i in range(2, 9))
    assert p[0] == 1.0 and p[1] == pytest.approx(0.125 / rest) and p.sum() == pytest.approx(2.0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize(("count", "chosen"), [(8, 1), (8, 2), (8, 8), (256, 8), (512, 10)])
def test_one_token_reads_as_many_experts_as_it_chooses(alpha: float, count: int, chosen: int) -> None:
    assert selection_probabilities(alpha, count, chosen).sum() == pytest.approx(chosen)
    assert distinct_experts(selection_probabilities(alpha, count, chosen), 1.0) == pytest.approx(chosen)


def test_two_tokens_of_a_skewed_mixtral_read_3_17_experts_instead_of_3_5() -> None:
    """Uniform: 8 (1 - 0.75^2) = 3.5.  alpha 1: sum of 2p - p^2 = 4 - (2/H_8)^2 (1 + 1/4 + ... + 1/64) = 4 - 0.5415 x
    1.5274 = 3.1729."""
    squares = sum(i**-2.0 for i in range(1, 9))
    assert distinct_experts(selection_probabilities(1.0, 8, 2), 2.0) == pytest.approx(
        4 - (2 / 2.7178571) ** 2 * squares
    )
    assert distinct_experts(selection_probabilities(0.0, 8, 2), 2.0) == pytest.approx(3.5)


def test_without_skew_the_number_of_experts_is_that_of_uniform_routing() -> None:
    """DeepSeek-V3, 8 of 256: 16 tokens use 102, 64 use 222."""
    tokens = np.array([1.0, 16.0, 64.0, 256.0])
    assert distinct_experts(selection_probabilities(0.0, 256, 8), tokens) == pytest.approx(
        feed_forward.distinct_experts(256.0, 8.0, tokens)
    )
    assert np.round(distinct_experts(selection_probabilities(0.0, 256, 8), tokens)).tolist() == [8, 102, 222, 256]


def test_the_busiest_rank_has_more_than_its_share() -> None:
    """4 ranks, 8 experts, alpha 1, one chosen: the first rank has experts 1 and 5: (1 + 1/5) / H_8 = 0.4415."""
    assert busiest_rank_share(1.0, 8, 4) == pytest.approx(1.2 / 2.7178571)
    assert busiest_rank_share(0.0, 8, 4) == pytest.approx(0.25)
    assert busiest_rank_share(0.0, 256, 8, chosen=8) == pytest.approx(1 / 8)
    assert busiest_rank_share(1.0, 256, 1) == pytest.approx(1.0)


def expert_gate(alpha: str, batch: int) -> dict[str, Any]:
    """expert_gate_proj in decode on one of 4 expert-parallel devices, Mixtral."""
    found = analyze("mixtral-8x7b", "h200", batch_size=batch, tensor_parallel_size=4, expert_parallel_size=4,
                       expert_skew=alpha)  # fmt: skip
    return next(op for op in found.stage("decode")["operators"] if op["name"] == "expert_gate_proj")


def test_expert_parallelism_counts_the_device_with_the_most_popular_expert() -> None:
    """The first of 4 devices has experts 1 and 5 of Mixtral: p = 0.7359 and 0.1472 of 2 choices, 44.15 % of all rows
    instead of 25 %; 64 sequences use both, 1 - (1 - 0.1472)^64 of the second."""
    even, skewed = expert_gate("0", 64), expert_gate("1", 64)
    assert skewed["flops"] / even["flops"] == pytest.approx(4 * 1.2 / 2.7178571)
    second = 1 - (1 - 0.4 / 2.7178571) ** 64
    assert skewed["weight_read_bytes"] == pytest.approx((1 + second) * 4096 * 14336 * 2)


def test_zero_skew_changes_nothing() -> None:
    plain = analyze("mixtral-8x7b", "h200", batch_size=4)
    assert analyze("mixtral-8x7b", "h200", batch_size=4, expert_skew="alpha=0").to_dict() == plain.to_dict()


def test_a_model_without_experts_is_rejected() -> None:
    with pytest.raises(UserError, match="no routed experts"):
        analyze("llama-2-7b", "h100", expert_skew="1")
    with pytest.raises(UserError, match="alpha is '-1'"):
        analyze("mixtral-8x7b", "h200", expert_skew="-1")


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("step", [decode(7.0, 100.0), prefill(1.0, 33.0)], ids=["decode", "prefill"])
def test_skew_reads_fewer_experts_and_keeps_flops_and_footprint(name: str, step: Step) -> None:
    plain = load(name).graph(step)
    skewed = [expert_skew(alpha)(plain) for alpha in (0.0, 0.7, 1.5)]
    for graph in skewed:
        for before, after in zip(experts(plain), experts(graph), strict=True):
            assert after.flops == before.flops and after.inputs == before.inputs
        kept = [sum(t.elements * times for t, times in g.stored_weights()) for g in (plain, graph)]
        assert kept[0] == kept[1]
    reads = [experts_read(plain), *map(experts_read, skewed)]
    assert reads[1] == pytest.approx(reads[0], rel=1e-12)
    assert 0 < reads[3] < reads[2] < reads[1]
    others = [[op.read_bytes(Role.WEIGHT) for _, op in g if op not in experts(g)] for g in (plain, skewed[2])]
    assert others[0] == others[1]


@pytest.mark.parametrize("name", MIXTURES)
def test_later_passes_accept_the_skewed_graph(name: str) -> None:
    skewed = expert_skew(1.0)(load(name).graph(decode(4.0, 100.0)))
    for scheme in ("w4a16", "w8a8"):
        low = flash_attention(specs.load("h100-sxm"))(quantize(parse_scheme(scheme))(skewed))
        check(low)
        check(shard(Sharding(tensor=2))(low))


def test_counts_are_bit_identical_inside_larger_arrays() -> None:
    """Powers of arrays use SIMD code, where the last bit may depend on the position in the array."""
    counts = np.array([8.0, 16.0, 37.0, 64.0, 1000.0])
    for experts, chosen in ((8, 2), (31, 2), (32, 2), (160, 6)):
        popularity = selection_probabilities(0.5, experts, chosen)
        together = distinct_experts(popularity, counts)
        for at, count in enumerate(counts):
            assert distinct_experts(popularity, count) == together[at]


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    batches = [1, 3, 64, 3]
    sweep = analyze("mixtral-8x7b", "h200", batch_size=batches, output_len=4, expert_skew="0.8")
    for at, batch in enumerate(batches):
        single = analyze("mixtral-8x7b", "h200", batch_size=batch, output_len=4, expert_skew="0.8")
        assert sweep.metrics(at) == single.metrics()
        assert sweep.stage("decode", at) == single.stage("decode")


def test_the_share_of_neighbours_is_an_option_of_its_own() -> None:
    """Four draft tokens of one sequence: sharing experts is faster, without skewed popularity too, and sweeps."""
    run: dict[str, Any] = {"speculative": "draft=mistral-7b,tokens=3,acceptance=0.7", "tensor_parallel_size": 2}
    times = {
        text: analyze("mixtral-8x7b", "a100", output_len=4, expert_skew=text, **run).metrics()["tpot_s"]
        for text in ("none", "repeat=0.25", "repeat=0.30", "repeat=0.6", "0.7", "alpha=0.7,repeat=0.6")
    }
    assert times["none"] == pytest.approx(times["repeat=0.25"], rel=1e-4)  # 2 of 8: chance
    assert times["repeat=0.25"] > times["repeat=0.30"] > times["repeat=0.6"]
    assert times["0.7"] > times["alpha=0.7,repeat=0.6"]
    with pytest.raises(UserError, match=r"expert_skew: repeat is '2'; allowed: a number from 0 to 1"):
        analyze("mixtral-8x7b", "h200", expert_skew="repeat=2")


def used(model: str, tokens: float, alpha: float, repeat: float, sequences: float = 1.0) -> float:
    """Experts that the verification of `tokens` tokens per sequence uses, over those of one token."""
    graph = load(model).graph(verify(sequences, 100.0, tokens - 1.0))
    shape = experts(expert_skew(alpha, repeat)(graph))[0].shape
    return float(shape.active) * tokens * sequences / float(shape.m)


@pytest.mark.parametrize(
    ("experts", "chosen", "repeat", "measured"),
    [
        (128, 8, 0.38, 2.5),  # Cohere: mixture-of-experts-models-get-more-from-speculative-decoding
        (128, 8, 3.666 / 8, 18.93 / 8),  # Qwen3-30B-A3B, github.com/Li-changwu/MoE-SD, routing_overlap_analysis.json
    ],
)
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_the_experts_two_tokens_share_tell_how_many_four_use(
    experts: int, chosen: int, repeat: float, measured: float, alpha: float
) -> None:
    """Measured: the share of two neighbours, and how many times the experts of one token four use; unrelated 3.6."""
    exponent = run_exponent(alpha, repeat, experts, chosen)
    popularity = selection_probabilities(alpha, experts, chosen)
    assert distinct_experts(popularity, 2.0**exponent) == pytest.approx((2.0 - repeat) * chosen, rel=1e-4)
    assert distinct_experts(popularity, 4.0**exponent) / chosen == pytest.approx(measured, rel=0.04)


def test_draft_trees_of_mixtral_use_all_experts_however_their_routing_is_related() -> None:
    """Neighbours share 0.30 of their experts (0.25 by chance): 2 and 8 tokens use 3.4 and 7.0, 26 use 7.9 of 8."""
    assert used("mixtral-8x7b", 2.0, 0.0, 0.30) == pytest.approx(3.4 / 2.0, rel=1e-4)
    assert used("mixtral-8x7b", 8.0, 0.0, 0.30) == pytest.approx(7.0 / 2.0, rel=0.01)
    assert 7.9 / 2.0 < used("mixtral-8x7b", 26.0, 0.0, 0.30) < 4.0


def test_a_share_below_that_of_popularity_alone_changes_nothing() -> None:
    """Popularity i^-0.7 alone lets two tokens share sum p^2 / k = 0.165 of 8 of 128 experts."""
    assert run_exponent(0.7, 0.16, 128, 8) == 1.0 > run_exponent(0.7, 0.17, 128, 8)
    assert used("qwen3-30b-a3b", 4.0, 0.7, 0.16) == pytest.approx(used("qwen3-30b-a3b", 4.0, 0.7, 0.0), rel=1e-12)
    assert used("qwen3-30b-a3b", 4.0, 0.7, 1.0) == pytest.approx(1.0, rel=1e-5)


def test_only_draft_tokens_of_one_sequence_are_related() -> None:
    """Eight sequences of 4 draft tokens are 8 runs of 4; prompts and plain steps are runs of one token."""
    assert verify(8.0, 100.0, 3.0).groups[0].runs == (8.0, 4.0)
    assert decode(7.0, 100.0).groups[0].runs == (7.0, 1.0)
    assert prefill(2.0, 33.0).groups[0].runs == (66.0, 1.0)
    step = mixed(verify(8.0, 100.0, 3.0), prefill(2.0, 33.0))
    shape = experts(expert_skew(0.7, 0.38)(load("qwen3-30b-a3b").graph(step)))[0].shape
    assert shape.unrelated == pytest.approx(8.0 * 4.0 ** run_exponent(0.7, 0.38, 128, 8) + 66.0)


def test_a_device_of_an_expert_parallel_group_reads_the_experts_of_related_tokens() -> None:
    """8 sequences of 4 draft tokens on 8 devices: every eighth expert, for 8 x 4^e tokens instead of 32."""
    graph = load("qwen3-30b-a3b").graph(verify(8.0, 100.0, 3.0))
    related, unrelated = (experts(expert_skew(0.7, repeat)(graph))[0].shape for repeat in (0.38, 0.0))
    own = busiest_rank_experts(related.popularity, 8)
    group = Sharding(tensor=8, expert=8)
    counted = 8.0 * 4.0 ** run_exponent(0.7, 0.38, 128, 8)
    assert busiest_active_experts(related, group) == pytest.approx(distinct_experts(own, counted))
    assert busiest_active_experts(unrelated, group) == pytest.approx(distinct_experts(own, 32.0))
