"""Low-rank factors instead of linear layers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, Role, check
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.compression.low_rank import low_rank
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.answers import answer
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
H100 = specs.load("h100-sxm")
STEPS = (prefill(2.0, 33.0), decode(4.0, 100.0))


def total(graph: Graph, field: str) -> Any:
    return sum(getattr(op, field) * block.repeats for block, op in graph)


def parameters(graph: Graph) -> float:
    return float(sum(t.elements * n for t, n in graph.stored_weights()))


def operator(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def test_rank_512_turns_16_8_million_weights_of_q_proj_into_4_2_million() -> None:
    """4096 x 4096 -> 512 x (4096 + 4096), a quarter; over 10 tokens 2 x 10 x 512 x 8192 FLOP."""
    graph = low_rank(512.0)(load("llama-2-7b").graph(prefill(1.0, 10.0)))
    a, b = operator(graph, "q_proj_low_a"), operator(graph, "q_proj_low_b")
    assert a.matmul_flops + b.matmul_flops == 2 * 10 * 512 * 8192
    weights = [x.elements for op in (a, b) for x in op.reads if x.tensor.role is Role.WEIGHT]
    assert weights == [512 * 4096, 512 * 4096]
    assert b.output.name == "q_proj" and b.inputs == ("q_proj_low_a",)


def test_only_layers_that_become_smaller_are_factored() -> None:
    """Llama-2-70B, rank 1000: k_proj of 8192 x 1024 would need 1000 x 9216 > 8192 x 1024 weights and is not factored;
    q_proj, 1000 x 16384 < 8192^2, is."""
    names = {op.name for _, op in low_rank(1000.0)(load("llama-2-70b").graph(STEPS[1]))}
    assert {"k_proj", "v_proj", "q_proj_low_a", "q_proj_low_b", "lm_head"} <= names
    assert "q_proj" not in names


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_work_and_weights_fall_together_on_every_model(name: str) -> None:
    before = load(name).graph(STEPS[1])
    ranks = (1e6, 1024.0, 256.0, 32.0)
    graphs = [low_rank(rank)(before) for rank in ranks]
    stored = [parameters(graph) for graph in graphs]
    flops = [float(np.sum(total(graph, "matmul_flops"))) for graph in graphs]
    assert stored[0] == parameters(before) and flops[0] == float(np.sum(total(before, "matmul_flops")))
    assert stored == sorted(stored, reverse=True) and flops == sorted(flops, reverse=True)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_every_operator_input_is_still_written_by_another(name: str) -> None:
    for step in STEPS:
        factored = low_rank(256.0)(load(name).graph(step))
        for scheme in ("none", "w4a16", "w8a8"):
            low = flash_attention(H100)(quantize(parse_scheme(scheme))(factored))
            check(low)
            assert all(np.all(np.asarray(op.flops) >= 0) for _, op in low)


@pytest.mark.parametrize("name", ["llama-2-70b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3.5-27b"])
def test_factors_are_split_over_two_devices_like_the_layer_they_replace(name: str) -> None:
    """A column-parallel layer splits its second factor, a row-parallel layer its first; the other factor is whole."""
    factored = low_rank(256.0)(load(name).graph(STEPS[1]))
    half = shard(Sharding(tensor=2))(flash_attention(H100)(factored))
    check(half)
    plain = shard(Sharding(tensor=2))(flash_attention(H100)(load(name).graph(STEPS[1])))
    assert [op.name for _, op in half if "all_reduce" in op.name] == [
        op.name for _, op in plain if "all_reduce" in op.name
    ]


def test_quantized_factors_are_stored_in_fewer_bits_and_take_quantized_inputs() -> None:
    low = quantize(parse_scheme("w8a8"))(low_rank(512.0)(load("llama-2-7b").graph(decode(1.0, 9.0))))
    assert operator(low, "q_proj_low_b").inputs == ("q_proj_low_a_quantize",)
    assert operator(low, "q_proj_low_a").compute == operator(low, "q_proj_low_b").compute == "int8"


def test_a_rank_that_saves_nothing_changes_nothing() -> None:
    whole, none = (answer("llama-2-7b", "a100", low_rank=text) for text in ("100000", "none"))
    assert whole["stages"] == none["stages"] and whole["memory"] == none["memory"]


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    sweep = analyze("mixtral-8x7b", "a100", low_rank=512, batch_size=[1, 7], input_len=[99, 1000])
    for at, (batch, length) in enumerate(((1, 99), (7, 1000))):
        single = analyze("mixtral-8x7b", "a100", low_rank="rank=512", batch_size=batch, input_len=length)
        assert sweep.analysis.ttft_s[at] == single.analysis.ttft_s[0]
        assert sweep.analysis.tpot_s[at] == single.analysis.tpot_s[0]


@pytest.mark.parametrize("text", ["0", "1.5", "rank=", "rnk=4", ""])
def test_a_wrong_rank_is_a_one_line_error(text: str) -> None:
    with pytest.raises(UserError) as caught:
        analyze("llama-2-7b", "a100", low_rank=text).to_dict()
    assert "\n" not in str(caught.value)
