"""LoRA adapters of linear layers: two low-rank products each, and the weights of a step's distinct adapters."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, Role, check
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.compression.lora import Adapters, lora
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.kernels.fuse import fuse
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.answers import answer, operators
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
H100 = specs.load("h100-sxm")
#: n + k over the seven linear layers of a layer of Llama-2-7B.
SIDES = 4 * (4096 + 4096) + 3 * (4096 + 11008)


def total(graph: Graph, field: str) -> Any:
    return sum(getattr(op, field) * block.repeats for block, op in graph)


def parameters(graph: Graph) -> float:
    return float(sum(t.elements * n for t, n in graph.stored_weights()))


def operator(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def test_a_rank_16_adapter_costs_32_flop_per_token_and_element() -> None:
    """Llama-2-7B, 10 tokens: 32 layers x 2 x 10 x 16 x 78,080 matmul FLOP, and one vector FLOP per output."""
    plain = load("llama-2-7b").graph(prefill(1.0, 10.0))
    adapted = lora(Adapters(rank=16.0))(plain)
    assert total(adapted, "matmul_flops") - total(plain, "matmul_flops") == 32 * 2 * 10 * 16 * SIDES
    outputs = 5 * 4096 + 2 * 11008
    assert total(adapted, "vector_flops") - total(plain, "vector_flops") == 32 * 10 * outputs
    assert parameters(adapted) - parameters(plain) == 32 * 16 * SIDES == 39_976_960


def test_all_adapters_are_stored_and_the_distinct_ones_of_a_step_are_read() -> None:
    """8 adapters of rank 16, batch 4: 8 (1 - (7/8)^4) = 3.3105 of them are read."""
    adapted = lora(Adapters(rank=16.0, count=8.0))(load("llama-2-7b").graph(decode(4.0, 9.0)))
    a = operator(adapted, "q_proj_lora_a")
    (weight,) = (access for access in a.reads if access.tensor.role is Role.WEIGHT)
    assert weight.tensor.elements == 8 * 16 * 4096
    assert weight.elements == pytest.approx(3.3105 * 16 * 4096, rel=1e-4)
    assert a.matmul_flops == 2 * 4 * 16 * 4096


@given(count=st.integers(1, 1000), sequences=st.integers(1, 1000))
def test_no_more_adapters_are_read_than_there_are_or_than_there_are_sequences(count: int, sequences: int) -> None:
    read = Adapters(rank=1.0, count=float(count)).distinct(float(sequences))
    assert 1 - 1e-9 <= read <= min(count, sequences) + 1e-9


def test_adapters_stay_in_16_bit_on_a_low_bit_base() -> None:
    """QLoRA: 4.127-bit base, 16-bit adapters; with W8A8 the base reads quantized inputs, adapters 16-bit ones."""
    adapted = lora(Adapters(rank=64.0))(load("llama-2-7b").graph(decode(1.0, 9.0)))
    low = quantize(parse_scheme("qlora"))(adapted)
    assert {a.tensor.dtype.bits for a in operator(low, "q_proj_lora_a").reads} == {16}
    w8a8 = quantize(parse_scheme("w8a8"))(adapted)
    assert operator(w8a8, "q_proj").inputs == ("attn_norm_quantize",)
    assert operator(w8a8, "q_proj_lora_a").inputs == ("attn_norm",)
    assert operator(w8a8, "q_proj_lora_b").compute == "fp16"


def test_only_chosen_targets_get_adapters() -> None:
    found = operators(answer("llama-2-7b", "a6000", lora="rank=8,adapters=2,targets=q_proj+v_proj"), "decode")
    adapted = {name.removesuffix("_lora_a") for name in found if name.endswith("_lora_a")}
    assert adapted == {"q_proj", "v_proj"}


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_work_is_added_exactly_and_graphs_stay_valid_on_every_model(name: str) -> None:
    for step in (prefill(2.0, 33.0), decode(4.0, 100.0)):
        plain = load(name).graph(step)
        adapted = lora(Adapters(rank=8.0, count=3.0))(plain)
        added = [(b, op) for b, op in adapted if op.name.endswith(("_lora_a", "_lora_b"))]
        work = sum(op.matmul_flops * b.repeats for b, op in added)
        assert np.allclose(total(adapted, "matmul_flops"), total(plain, "matmul_flops") + work, rtol=1e-12)
        assert [op.name for _, op in adapted if not op.name.endswith(("_lora_a", "_lora_b"))] == [
            op.name for _, op in plain
        ]
        for scheme in ("none", "w4a16", "w8a8"):
            check(flash_attention(H100)(quantize(parse_scheme(scheme))(adapted)))


@pytest.mark.parametrize("name", ["llama-2-70b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3.5-27b"])
def test_an_adapter_on_two_devices_needs_no_further_all_reduce(name: str) -> None:
    graph = flash_attention(H100)(load(name).graph(decode(4.0, 100.0)))
    adapted = flash_attention(H100)(lora(Adapters(rank=8.0))(load(name).graph(decode(4.0, 100.0))))
    plain, both = (shard(Sharding(tensor=2))(g) for g in (graph, adapted))
    check(both)
    collectives = [[op.name for _, op in g if op.name.endswith("all_reduce")] for g in (plain, both)]
    assert collectives[0] == collectives[1]


def test_more_adapters_or_a_higher_rank_are_never_faster() -> None:
    times = [
        analyze("llama-2-7b", "a6000", batch_size=8, lora=text).analysis.e2e_s[0]
        for text in ("rank=8", "rank=64", "rank=64,adapters=4", "rank=64,adapters=64")
    ]
    assert times == sorted(times)
    assert times[0] > analyze("llama-2-7b", "a6000", batch_size=8).analysis.e2e_s[0]


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    sweep = analyze("mixtral-8x7b", "a100", lora="16,adapters=4", batch_size=[1, 7], input_len=[99, 1000])
    for at, (batch, length) in enumerate(((1, 99), (7, 1000))):
        single = analyze("mixtral-8x7b", "a100", lora="16,adapters=4", batch_size=batch, input_len=length)
        assert sweep.analysis.ttft_s[at] == single.analysis.ttft_s[0]
        assert sweep.analysis.tpot_s[at] == single.analysis.tpot_s[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank=0", r"lora: rank is '0'; allowed: a whole number from 1"),
        ("rank=8,adapters=1.5", r"lora: adapters is '1.5'; allowed: a whole number"),
        ("rank=8,targets=q_prj", r"unknown target of lora 'q_prj'.*did you mean 'q_proj'"),
        ("rank=8,targets=q_proj,targets=v_proj", r"targets is given twice"),
        ("adapters=4", r"lora: rank is missing"),
        ("targets=q_proj", r"unknown parameter of lora ''|lora: rank"),
    ],
)
def test_a_wrong_parameter_is_a_one_line_error_that_states_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        analyze("llama-2-7b", "a100", lora=text).to_dict()
    assert "\n" not in str(caught.value)


def test_a_recurrent_model_that_exits_early_reads_the_adapters_of_its_sequences() -> None:
    """Three sequences of eight adapters: 8 (1 - (7/8)^3) distinct ones, each 16 (768 + 3072) weights for in_proj."""
    found = answer("mamba-130m", "a100", batch_size=3, early_exit="mean=0.6,kv=recompute", lora="rank=16,adapters=8")
    (a,) = [one for one in found["stages"]["decode"]["operators"] if one["name"] == "in_proj_lora_a"]
    assert a["weight_read_bytes"] == pytest.approx(8 * (1 - (7 / 8) ** 3) * 16 * 768 * 2 * _share(found))


def _share(found: dict[str, Any]) -> float:
    """Share of the layers that run in an average step."""
    (plain,) = [one for one in found["stages"]["decode"]["operators"] if one["name"] == "in_proj"]
    return float(plain["weight_read_bytes"]) / (2 * 1536 * 768 * 2)


def test_slices_of_adapters_run_as_one_kernel_as_in_punica() -> None:
    """q, k and v with A, then with B; gate and up alike; o and down alone: 8 kernels of a layer for 14."""
    graph = lora(Adapters(rank=16.0, count=8.0))(load("llama-2-7b").graph(decode(4.0, 9.0)))
    fused = fuse(("qkv", "gate-up"), H100)(graph)
    names = [op.name for block, op in fused if op.name.endswith(("_lora_a", "_lora_b")) and block.is_layer]
    assert names == [
        f"{name}_lora_{part}" for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj") for part in "ab"
    ]
    assert total(fused, "matmul_flops") == total(graph, "matmul_flops")
    assert parameters(fused) == parameters(graph)
    a, b = (operator(fused, f"qkv_proj_lora_{part}") for part in "ab")
    assert (a.shape.m, a.shape.n, a.shape.k) == (4.0, 3 * 16.0, 4096.0)  # type: ignore[attr-defined]
    assert (b.shape.m, b.shape.n, b.shape.k) == (4.0, 3 * 4096.0, 16.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_several_adapters_are_no_experts_whose_rows_are_sorted(engine: str) -> None:
    """Eight adapters read more weights than one; their kernels are as many."""
    options = {"efficiency": "calibrated", "engine": engine, "batch_size": 32}
    none, one, eight = (
        float(analyze("llama-3.1-8b", "h100-sxm", **options, **adapters).tpot_s)
        for adapters in ({}, {"lora": "rank=16,adapters=1"}, {"lora": "rank=16,adapters=8"})
    )
    assert none < one < eight < 1.3 * none
