"""Fusion with the norm of the next layer and with all-reduces, and the kernel that writes the cache."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from llmviewer import models
from llmviewer.api.configuration import configuration
from llmviewer.core.ir import Graph, Operator, Role, check
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.kernels.fuse import fuse, parse_rules, report
from llmviewer.techniques.kernels.of_engine import cache_write
from llmviewer.techniques.parallel.shard import Sharding, shard

from .answers import analyze

load = functools.cache(models.load)
H100, A6000 = (specs.load(name) for name in ("h100-sxm", "a6000"))
RULES = ("residual-norm", "next-norm")


def graph(model: str, tokens: float = 4.0) -> Graph:
    return flash_attention(H100)(load(model).graph(decode(tokens, 100.0)))


def named(found: Graph, name: str) -> Operator:
    return next(op for _, op in found if op.name == name)


def launches(found: Graph, *kinds: Kind) -> int:
    return sum(block.repeats for block, op in found if op.kind in kinds)


def traffic(found: Graph) -> float:
    return float(sum(op.traffic_bytes * block.repeats for block, op in found))


def test_a_step_of_24_layers_launches_49_norms_and_no_sum() -> None:
    """Two norms a layer and the final one, as a profile of vLLM with gpt-oss-20b on an MI300X shows."""
    plain = graph("gpt-oss-20b")
    fused = fuse(RULES, H100)(plain)
    assert launches(plain, Kind.NORM) == launches(fused, Kind.NORM) == 24 * 2 + 1
    assert not any(op.name.endswith("_add") for _, op in fused)


def test_the_next_norm_saves_one_read_of_the_residual_stream_in_every_layer() -> None:
    """Llama-2-7B, 4 tokens: 32 layers x 4 x 4096 x 2 bytes that the norm does not read again; FLOPs stay."""
    within, across = (fuse(rules, H100)(graph("llama-2-7b")) for rules in (RULES[:1], RULES))
    assert traffic(within) - traffic(across) == 32 * 4 * 4096 * 2
    flops = [sum(op.flops * block.repeats for block, op in found) for found in (within, across)]
    assert flops[0] == flops[1]
    sums = named(across, "mlp_add+attn_norm")
    assert [a.tensor.name for a in sums.writes] == ["mlp_add", "attn_norm"]
    check(across)


def test_fusing_with_the_next_norm_twice_changes_nothing() -> None:
    once = fuse(RULES, H100)(graph("llama-2-7b"))
    assert [op.name for _, op in fuse(RULES, H100)(once)] == [op.name for _, op in once]


@pytest.mark.parametrize("model", ["opt-350m", "gemma-2-9b"])
def test_layers_that_end_in_a_norm_or_in_a_normed_sum_keep_their_first_norm(model: str) -> None:
    """OPT-350m normalises after its sums, Gemma 2 between branch and sum, where the sum runs."""
    found = fuse(RULES, H100)(graph(model))
    assert not any(op.name.startswith("mlp_add+attn_norm") for _, op in found)
    reasons = [row.reason for row in report(graph(model), RULES, H100) if row.rule == "next-norm"]
    assert reasons == ["no layer ends with a residual sum and begins with a norm"]


def test_an_all_reduce_runs_the_sum_and_norm_after_it_and_keeps_its_time() -> None:
    """Llama-3.1-8B on two H100: two sums and two norms run in the kernels of exchanges, whose time stays."""
    rules = ("residual-norm", "all-reduce", "next-norm")
    sharded = shard(Sharding(tensor=2))(graph("llama-3.1-8b"))
    fused = fuse(rules, H100)(sharded)
    names = [op.name for op in fused.blocks[1].operators]
    assert "attn_all_reduce+attn_add+mlp_norm" in names and "mlp_all_reduce+mlp_add+attn_norm" in names
    assert len(sharded.blocks[1].operators) - len(names) == 4  # two sums and two norms
    assert launches(sharded, Kind.COLLECTIVE) == launches(fused, Kind.COLLECTIVE)
    check(fused)
    options = {"batch_size": 4, "tensor_parallel_size": 2, "output_len": 2}
    answers = [analyze("llama-3.1-8b", "h100-sxm", fusion="+".join(r), **options).to_dict() for r in (rules[:1], rules)]
    plain, joined = ({op["name"]: op["time_s"] for op in one["stages"]["decode"]["operators"]} for one in answers)
    assert joined["attn_all_reduce+attn_add+mlp_norm"] == plain["attn_all_reduce"]


def test_messages_beyond_half_a_mebibyte_are_reduced_alone_on_eight_hoppers() -> None:
    """Hidden size 4096 in 16 bit: 64 tokens are 0.5 MiB, 65 are more."""
    sharded = [shard(Sharding(tensor=8))(graph("llama-3.1-8b", tokens)) for tokens in (64.0, 65.0)]
    fused = [[op.name for _, op in fuse(("all-reduce",), H100)(one)] for one in sharded]
    assert "attn_all_reduce+attn_add" in fused[0]
    assert "attn_all_reduce+attn_add" not in fused[1] and "attn_all_reduce" in fused[1]


def test_chips_without_a_fused_kernel_say_so() -> None:
    sharded = shard(Sharding(tensor=2))(graph("llama-3.1-8b"))
    rows = report(sharded, ("all-reduce",), A6000)
    assert {row.reason for row in rows} == {"no fused kernel for 2 devices of a6000"}


def test_all_is_every_rule_within_a_layer_of_one_device() -> None:
    assert not {"all-reduce", "next-norm"} & set(parse_rules("all"))


def test_the_cache_kernel_reads_what_it_writes_and_leaves_the_cache_bytes() -> None:
    """Llama-3.1-8B, 4 tokens: 8 KV heads of 128, keys and values of 2 bytes: 16,384 bytes read and written a layer."""
    plain = graph("llama-3.1-8b")
    found = cache_write(plain)
    kernel = named(found, "cache_write")
    assert kernel.moved_bytes(kernel.output.place) == 2 * 4 * 2 * 8 * 128 * 2
    assert traffic(found) - traffic(plain) == 32 * 2 * 16384  # written as activations, and read
    written = [sum(op.write_bytes(Role.CACHE) * block.repeats for block, op in one) for one in (plain, found)]
    assert written[0] == written[1]
    check(found)


def test_an_8_bit_cache_is_written_from_16_bit_entries() -> None:
    """4 tokens x 2,048 entries: read in 2 bytes, written in 1, though the weights' inputs are 8 bit as well."""
    system = configuration("llama-3.1-8b", "h100-sxm", engine="vllm", quantization="fp8", kv_cache_dtype="fp8").system
    kernel = named(system.prepared(load("llama-3.1-8b").graph(decode(4.0, 100.0))), "cache_write")
    assert kernel.read_bytes(Role.ACTIVATION) == 4 * 2048 * 2
    assert kernel.write_bytes(Role.CACHE) == 4 * 2048


@pytest.mark.parametrize(("engine", "kernels"), [("vllm", 61), ("sglang", 61), ("trtllm", 0), ("kernels", 0)])
def test_engines_that_launch_a_cache_kernel_have_one_in_every_layer(engine: str, kernels: int) -> None:
    """DeepSeek-V3 has 61 layers; TensorRT-LLM's attention writes the cache, and no engine launches nothing."""
    system = configuration("deepseek-v3", "h200", engine=engine, tensor_parallel_size=8).system
    prepared = system.prepared(load("deepseek-v3").graph(prefill(1.0, 64.0)))
    assert sum(block.repeats for block, op in prepared if op.name == "cache_write") == kernels


def test_layers_without_attention_have_no_cache_kernel() -> None:
    found = cache_write(graph("mamba-2.8b"))
    assert np.all([op.name != "cache_write" for _, op in found])
