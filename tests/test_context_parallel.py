"""Context parallelism: tokens of a sequence split over devices, the work of each, and the exchanges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Place, check
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.hardware.specs import load
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.context_parallel import context_parallel
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from tests.representative import REPRESENTATIVE

from .answers import answer, operators


def number(count: Count) -> float:
    return float(np.ravel(count)[0])


@cache
def eager(name: str, step: Step) -> Graph:
    return models.load(name).graph(step)


@cache
def plain(name: str, step: Step) -> Graph:
    return flash_attention(load("h100-sxm"))(eager(name, step))


def recurrent(graph: Graph) -> bool:
    return any(op.kind in (Kind.RECURRENCE, Kind.CONV) for _, op in graph)


PREFILL, DECODE = prefill(2.0, 4096.0), decode(8.0, 4095.0)


@pytest.mark.parametrize("built", [plain, eager], ids=["flash", "eager"])
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_no_count_grows_and_recurrent_models_are_rejected(name: str, built: Callable[[str, Step], Graph]) -> None:
    for step in (PREFILL, DECODE):
        graph = built(name, step)
        if recurrent(graph):
            with pytest.raises(UserError, match="processes its tokens one after another"):
                context_parallel(4, 8.0)(graph)
            continue
        four = context_parallel(4, 8.0)(graph)
        check(four)
        before = {(block.name, op.name): op for block, op in graph}
        for block, operator in four:
            assert len({op.name for op in block.operators}) == len(block.operators)
            if operator.kind is not Kind.COLLECTIVE:
                for of in ("flops", "matmul_flops", "traffic_bytes"):
                    whole = number(getattr(before[block.name, operator.name], of))
                    assert 0.0 <= number(getattr(operator, of)) <= whole * (1 + 1e-12)
        for a, b in zip(graph.blocks, four.blocks, strict=True):
            for state, part in zip(a.states, b.states, strict=True):
                assert part.resident_bytes(100.0) == pytest.approx(state.resident_bytes(100.0) / 4)


def test_four_devices_each_do_a_quarter_of_a_long_prompt() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b", "gemma-2-9b"):
        whole, four = plain(name, PREFILL), context_parallel(4, 8.0)(plain(name, PREFILL))
        flops = [sum(number(op.matmul_flops) * b.repeats for b, op in g if op.name != "lm_head") for g in (whole, four)]
        assert flops[1] * 4 == pytest.approx(flops[0])


def test_prefill_gathers_keys_and_values_and_decode_combines_partial_outputs() -> None:
    """Llama-3.1-8b, 4 devices.  Prefill, 2 x 4096 keys of 8 heads: 3/4 of their 33.6 MB.  Decode, 8 tokens: an
    all-reduce of 8 x 32 heads of 128 elements with a maximum and a sum, 3/2 of it."""
    for step, name, sent in (
        (PREFILL, "kv_all_gather", 3 / 4 * (2 * 4096 * 8 * 128 * 2 * 2)),
        (DECODE, "attn_combine_all_reduce", 3 / 2 * (8 * 32 * (128 + 2) * 2)),
    ):
        four = context_parallel(4, 8.0)(plain("llama-3.1-8b", step))
        found = {op.name: op for _, op in four if op.kind is Kind.COLLECTIVE}
        assert number(found.pop(name).moved_bytes(Place.LINK)) == pytest.approx(sent)
        assert all(number(op.moved_bytes(Place.LINK)) == 0.0 for op in found.values())
        assert all(number(op.traffic_bytes) == 0.0 for op in found.values())


def test_a_verification_is_split_like_a_decode_step() -> None:
    """Five tokens per sequence: keys are not exchanged, five times as many partial outputs are combined."""
    of = {"input_len": 100000, "context_parallel_size": 4}
    one = answer("llama-3.1-8b", "h100-sxm", **of)
    five = answer("llama-3.1-8b", "h100-sxm", speculative="ngram,tokens=4", **of)
    a, b = (operators(found, "decode") for found in (one, five))
    assert "kv_all_gather" not in b
    assert b["attn_combine_all_reduce"]["flops"] == 5 * a["attn_combine_all_reduce"]["flops"]
    assert b["o_proj"]["matmul_flops"] == 5 * a["o_proj"]["matmul_flops"]
    assert five["generation"]["pass_s"] < 1.1 * one["stages"]["decode"]["time_s"]


def test_draft_heads_are_replicated_on_every_device() -> None:
    one, two = (
        answer("llama-3.1-8b", "h100-sxm", speculative="medusa", context_parallel_size=devices)["generation"]
        for devices in (1, 2)
    )
    assert one["drafts"][0]["pass_s"] == two["drafts"][0]["pass_s"]


def test_unused_exchanges_take_no_time() -> None:
    """Prefill gathers keys, decode combines outputs; neither pays for the other's messages."""
    for name in ("llama-3.1-8b", "gpt-oss-20b"):
        found = lv.analyze(name, "h100-sxm", input_len=64, context_parallel_size=2).to_dict()
        for stage in found["stages"].values():
            times = (operator["time_s"] * operator["layers"] for operator in stage["operators"])
            assert sum(times) == pytest.approx(stage["time_s"], rel=1e-12)


def test_a_decode_step_reads_its_share_of_the_cache_and_all_weights() -> None:
    one = answer("llama-3.1-8b", "h100-sxm", input_len=100000)
    four = answer("llama-3.1-8b", "h100-sxm", input_len=100000, context_parallel_size=4)
    a, b = (operators(found, "decode") for found in (one, four))
    assert b["attention"]["kv_read_bytes"] == a["attention"]["kv_read_bytes"] / 4
    assert b["gate_proj"]["weight_read_bytes"] == a["gate_proj"]["weight_read_bytes"]
    assert four["memory"]["kv_cache_bytes"] == one["memory"]["kv_cache_bytes"] / 4
    assert four["parallelism"]["devices"] == 4
    assert four["metrics"]["ttft_s"] < one["metrics"]["ttft_s"] / 3


@pytest.mark.parametrize("name", ["llama-2-70b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-j-6b"])
@pytest.mark.parametrize("step", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_tensor_and_context_parallelism_compose(name: str, step: Step) -> None:
    two = shard(Sharding(tensor=2))(plain(name, step))
    both = context_parallel(2, 4.0)(two)
    check(both)
    flops = [sum(number(op.matmul_flops) * b.repeats for b, op in g) for g in (two, both)]
    assert flops[1] <= flops[0]


@pytest.mark.parametrize("name", ["llama-2-7b", "deepseek-v2-lite"])
def test_a_single_point_equals_the_point_of_a_sweep(name: str) -> None:
    model, new = models.load(name), np.array([1.0, 3.0, 1000.0])
    together = context_parallel(4, 8.0)(model.graph(prefill(2.0, new, 500.0)))
    for at, tokens in enumerate(new):
        single = context_parallel(4, 8.0)(model.graph(prefill(2.0, np.array([tokens]), 500.0)))
        for (_, a), (_, b) in zip(single, together, strict=True):
            for of in ("flops", "traffic_bytes"):
                assert number(getattr(a, of)) == np.broadcast_to(getattr(b, of), new.shape)[at]


@pytest.mark.parametrize("efficiency", ["ideal", "calibrated"])
def test_the_exchange_of_the_other_stage_takes_no_time(efficiency: str) -> None:
    """Prefill gathers keys, decode combines sums: operators x layers add up to the time of each stage exactly."""
    result = lv.analyze("llama-3.1-8b", "h100", input_len=4096, context_parallel_size=4, efficiency=efficiency)
    for name in ("prefill", "decode"):
        stage = result.stage(name)
        made = sum(operator["time_s"] * operator["layers"] for operator in stage["operators"])
        assert made == pytest.approx(stage["time_s"], rel=1e-12)


@pytest.mark.parametrize(
    "cached", [{"kv_evict": "0.2"}, {"prefix_cache": "0.5,cascade"}, {"prefix_cache": "0.5,shared"}], ids=str
)
def test_products_of_a_prompt_are_split_whatever_the_cache_keeps(cached: dict[str, str]) -> None:
    """Four devices: a quarter of 1,024 tokens, or of the half that is not in the cache, x 2 x 4096 x 4096 FLOP."""
    found = answer("llama-3.1-8b", "h100", batch_size=4, context_parallel_size=4, **cached)
    tokens = 4 * 1024 / 4 if "kv_evict" in cached else 4 * 512 / 4
    (q_proj,) = [one for one in found["stages"]["prefill"]["operators"] if one["name"] == "q_proj"]
    assert q_proj["flops"] == tokens * 2 * 4096 * 4096


def test_eviction_alone_makes_no_kernel_for_common_prefixes() -> None:
    found = answer("llama-3.1-8b", "h100", kv_evict="0.2", attention="flash-decoding=4")
    assert not [one for one in found["stages"]["decode"]["operators"] if "prefix" in one["name"]]
