"""Tensor and expert parallelism: split and replicated operators of one device, and collectives."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Operator, Place, Role, check
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware.specs import load
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.collective import Collective, is_of_all_ranks
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import KV_HEADS, REPLICATED, Sharding
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.representative import REPRESENTATIVE

from .answers import analyze, answer, operators

NAMES = REPRESENTATIVE
#: 16-bit models with one norm per branch; models with an odd number of heads.
SEQUENTIAL = ("llama-2-7b", "llama-2-70b", "mixtral-8x7b", "gemma-2-9b", "jamba-v0.1", "mamba-2.8b", "olmo-2-7b")
ODD = {"falcon-7b": 71, "gpt2-xl": 25}
STEPS = {"prefill": prefill(2.0, 384.0), "decode": decode(8.0, 1023.0)}


@cache
def graph_of(name: str, stage: str) -> Graph:
    return flash_attention(load("h100-sxm"))(models.load(name).graph(STEPS[stage]))


def two_devices(name: str, stage: str, **sizes: object) -> tuple[Graph, Graph]:
    """Graphs of a model on one device and on one of two devices."""
    if name in ODD:
        pytest.skip(f"{ODD[name]} heads do not divide by 2")
    graph = graph_of(name, stage)
    return graph, shard(Sharding(tensor=2, **sizes))(graph)  # type: ignore[arg-type]


def kv_heads(block: Block) -> float:
    heads = [float(np.max(op.shape.kv_heads)) for op in block.operators if isinstance(op.shape, AttentionShape)]
    return heads[0] if heads else 2.0


def number(count: Count) -> float:
    return float(np.ravel(count)[0])


def operator_pairs(name: str, stage: str) -> list[tuple[Block, Operator, Operator]]:
    """(block, operator on one device, the same on one of two)."""
    whole, one = two_devices(name, stage)
    found = []
    for before, after in zip(whole.blocks, one.blocks, strict=True):
        shared = {op.name: op for op in after.operators}
        found += [(before, op, shared[op.name]) for op in before.operators]
    return found


@pytest.mark.parametrize("stage", STEPS)
@pytest.mark.parametrize("name", NAMES)
def test_sharding_keeps_matmul_flops_except_replicated_ones(name: str, stage: str) -> None:
    for block, whole, one in operator_pairs(name, stage):
        if whole.name in REPLICATED:
            assert number(one.matmul_flops) == number(whole.matmul_flops)
        elif kv_heads(block) >= 2.0 or not {a.tensor.name for a in whole.writes} & KV_HEADS:
            assert 2.0 * number(one.matmul_flops) == pytest.approx(number(whole.matmul_flops), rel=1e-12)
        else:
            assert number(one.matmul_flops) <= number(whole.matmul_flops)


@pytest.mark.parametrize("name", NAMES)
def test_sharding_keeps_weight_bytes_except_replicated_ones(name: str) -> None:
    for block, whole, one in operator_pairs(name, "decode"):
        parts = {a.tensor.name: number(a.tensor.elements) for a in one.reads if a.tensor.role is Role.WEIGHT}
        for access in (a for a in whole.reads if a.tensor.role is Role.WEIGHT):
            here, all_of_it = parts[access.tensor.name], number(access.tensor.elements)
            if kv_heads(block) >= 2.0 or not {a.tensor.name for a in whole.writes} & KV_HEADS:
                assert here == all_of_it or here == pytest.approx(all_of_it / 2.0, rel=1e-12)
            replicated = whole.name in REPLICATED or whole.kind is Kind.NORM or whole.name.startswith("router")
            replicated |= "position" in access.tensor.name
            assert here < all_of_it or replicated or ".bias" in access.tensor.name or kv_heads(block) == 1.0


@pytest.mark.parametrize("stage", STEPS)
@pytest.mark.parametrize("name", NAMES)
def test_no_count_of_a_device_grows_and_none_is_negative(name: str, stage: str) -> None:
    for sequence in (False, True):
        whole, one = two_devices(name, stage, sequence=sequence)
        check(one)
        plain = {(block.name, op.name): op for block, op in whole}
        for block, operator in one:
            if operator.kind is not Kind.COLLECTIVE:
                before = plain[block.name, operator.name]
                for of in ("flops", "matmul_flops", "vector_flops", "special_ops", "traffic_bytes"):
                    assert 0.0 <= number(getattr(operator, of)) <= number(getattr(before, of)) * (1 + 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_operator_names_are_unique_and_states_are_split(name: str) -> None:
    whole, one = two_devices(name, "decode")
    for before, after in zip(whole.blocks, one.blocks, strict=True):
        assert not [name for name, count in Counter(op.name for op in after.operators).items() if count > 1]
        for state, part in zip(before.states, after.states, strict=True):
            replicated = state.name == "latent_cache" or (kv_heads(before) == 1.0 and state.name in KV_HEADS)
            assert part.resident_bytes(100.0) == state.resident_bytes(100.0) / (1.0 if replicated else 2.0)


@pytest.mark.parametrize("scheme", ["w4a16", "w8a8", "w8a8kv8"])
@pytest.mark.parametrize("name", NAMES)
def test_quantized_models_can_be_sharded(name: str, scheme: str) -> None:
    if name in ODD:
        pytest.skip("odd heads")
    for step in STEPS.values():
        graph = flash_attention(load("h100-sxm"))(quantize(parse_scheme(scheme))(models.load(name).graph(step)))
        for sequence in (False, True):
            check(shard(Sharding(tensor=2, sequence=sequence))(graph))


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite", "jamba-v0.1"])
@pytest.mark.parametrize("technique", [{"lora": "rank=16,adapters=4"}, {"low_rank": "256"}], ids=str)
def test_factors_are_split_along_the_split_dimension(name: str, technique: dict[str, str]) -> None:
    one = answer(name, "h100-sxm", **technique)["stages"]["prefill"]["operators"]
    two = answer(name, "h100-sxm", **technique, tensor_parallel_size=2)["stages"]["prefill"]["operators"]
    whole = {(op["block"], op["name"]): op["matmul_flops"] for op in one}
    for op in two:
        before = whole.get((op["block"], op["name"]), 0)
        factor = op["name"].endswith(("_a", "_b")) and ("_lora_" in op["name"] or "_low_" in op["name"])
        assert op["matmul_flops"] <= before
        assert not factor or op["matmul_flops"] in (before, before / 2)
    names = [op["name"] for op in two if op["kind"] == "collective"]
    assert not [n for n in names if "lora" in n or "low" in n]  # sums of rank elements stay partial


def collectives(graph: Graph, block: str) -> list[str]:
    return [op.name for b, op in graph if b.name == block and op.kind is Kind.COLLECTIVE]


def test_one_device_is_the_same_graph() -> None:
    graph = graph_of("llama-2-7b", "decode")
    assert shard(Sharding(tensor=1))(graph) is graph


def test_both_branches_of_a_layer_end_in_an_all_reduce() -> None:
    _, one = two_devices("llama-2-7b", "prefill")
    assert collectives(one, "embedding") == ["embedding_all_reduce"]
    assert collectives(one, "layer") == ["attn_all_reduce", "mlp_all_reduce"]
    assert collectives(one, "head") == ["logits_all_gather"]


@pytest.mark.parametrize("name", ["gpt-j-6b", "falcon-40b", "command-r-35b"])
def test_a_parallel_layer_needs_one_all_reduce(name: str) -> None:
    if name not in NAMES:
        pytest.skip(f"{name} is not among the models")
    _, one = two_devices(name, "decode")
    assert collectives(one, "layer") == ["mlp_all_reduce"]


def test_mamba_reduces_time_steps_b_and_c_in_one_message() -> None:
    whole, one = two_devices("mamba-2.8b", "decode")
    assert collectives(one, "mamba") == ["x_proj_all_reduce", "attn_all_reduce"]
    reduce = next(op for _, op in one if op.name == "x_proj_all_reduce")
    made = next(op for _, op in whole if op.name == "x_proj")
    assert number(reduce.moved_bytes(Place.LINK)) == sum(number(a.elements) for a in made.writes) * 2.0 * 2 * 1 / 2


def test_parallel_branches_have_collectives_with_distinct_names() -> None:
    _, one = two_devices("gemma-4-26b-a4b", "decode")
    assert collectives(one, "full") == ["attn_all_reduce", "mlp_all_reduce", "expert_combine_all_reduce"]


def test_kv_heads_are_replicated_beyond_one_per_device() -> None:
    """Llama-2-70b has 8 KV heads of 128: on 16 devices each has one K and one V head, 256 elements per token."""
    graph = shard(Sharding(tensor=16))(graph_of("llama-2-70b", "decode"))
    layer = next(block for block in graph.blocks if block.states)
    assert [state.per_token for state in layer.states] == [128.0, 128.0]
    k_proj = next(op for op in layer.operators if op.name == "k_proj")
    assert number(k_proj.matmul_flops) == 2 * 8 * 8192 * 128
    q_proj = next(op for op in layer.operators if op.name == "q_proj")
    assert number(q_proj.matmul_flops) == 2 * 8 * 8192 * (8192 / 16)
    shape = next(op.shape for op in layer.operators if isinstance(op.shape, AttentionShape))
    assert (shape.heads, float(shape.kv_heads)) == (4.0, 1.0)


def test_the_latent_of_mla_is_replicated() -> None:
    whole, one = two_devices("deepseek-v2-lite", "decode")
    assert [b.states[0].per_token for b in one.blocks if b.states] == [512 + 64] * 2
    a, b = (next(op for _, op in graph if op.name == "kv_a_proj") for graph in (whole, one))
    assert number(a.matmul_flops) == number(b.matmul_flops)


def test_an_all_reduce_sends_twice_its_share_of_tokens_times_hidden() -> None:
    """Llama-2-7b, 384 tokens x 2, hidden 4096, 2 bytes, 4 devices: 2 x 3/4 of 6,291,456 bytes."""
    graph = shard(Sharding(tensor=4))(graph_of("llama-2-7b", "prefill"))
    reduce = next(op for _, op in graph if op.name == "attn_all_reduce")
    assert number(reduce.moved_bytes(Place.LINK)) == 2 * 3 / 4 * (2 * 384 * 4096 * 2)
    assert number(reduce.vector_flops) == 3 / 4 * (2 * 384 * 4096)
    assert number(reduce.traffic_bytes) == 2 * (2 * 384 * 4096 * 2)


@pytest.mark.parametrize("name", NAMES)
def test_sequence_parallelism_sends_the_same_bytes_and_splits_norms(name: str) -> None:
    _, plain = two_devices(name, "prefill")
    _, shared = two_devices(name, "prefill", sequence=True)
    if name in SEQUENTIAL:
        sent = [sum(number(op.moved_bytes(Place.LINK)) * b.repeats for b, op in graph if b.states)
                for graph in (plain, shared)]  # fmt: skip
        assert sent[0] == sent[1]
    norms = {name: [number(op.vector_flops) for _, op in graph if op.name in ("attn_norm", "mlp_norm", "final_norm")]
             for name, graph in (("plain", plain), ("shared", shared))}  # fmt: skip
    assert norms["shared"] == pytest.approx([flops / 2.0 for flops in norms["plain"]])


def test_a_single_token_is_not_divided_by_sequence_parallelism() -> None:
    graph = models.load("llama-2-7b").graph(decode(1.0, 10.0))
    norm = next(op for _, op in shard(Sharding(tensor=4, sequence=True))(graph) if op.name == "mlp_norm")
    assert number(norm.vector_flops) == 7 * 4096


def test_indivisible_heads_are_named_in_the_error() -> None:
    for name, heads in ODD.items():
        with pytest.raises(UserError, match=f"not {heads}"):
            shard(Sharding(tensor=2))(graph_of(name, "decode"))
    with pytest.raises(UserError, match="10 KV heads cannot be split evenly over 4"):
        shard(Sharding(tensor=4))(graph_of("phi-4", "decode"))


def test_expert_parallelism_keeps_weights_and_counts_the_busiest_device() -> None:
    """Mixtral, 4 devices: 2 of 8 experts each.  One token uses 2: the busiest device reads one of them and computes
    half the rows; at 8192 tokens all are used and each device has a quarter."""
    model = models.load("mixtral-8x7b")
    for tokens, share in ((1.0, 1 / 2), (8192.0, 1 / 4)):
        whole = model.graph(decode(tokens, 100.0))
        one = shard(Sharding(tensor=4, expert=4))(whole)
        a, b = (next(op for _, op in graph if op.name == "expert_up_proj") for graph in (whole, one))
        assert number(b.matmul_flops) == pytest.approx(number(a.matmul_flops) * share)
        assert number(b.read_bytes(Role.WEIGHT)) == pytest.approx(number(a.read_bytes(Role.WEIGHT)) * share)
        assert b.reads[1].tensor.elements == 8 * 4096 * 14336 / 4
        assert collectives(one, "layer") == ["attn_all_reduce", "mlp_all_reduce"]


def test_replicas_that_share_experts_exchange_rows_twice() -> None:
    """Mixtral, 4 replicas of 64 sequences: a device sends 64 x 2 rows of 4096, 3/4 of them over the link."""
    whole = models.load("mixtral-8x7b").graph(decode(64.0, 100.0))
    one = shard(Sharding(tensor=1, data=4, expert=4))(whole)
    check(one)
    sent = {op.name: op for _, op in one if op.kind is Kind.COLLECTIVE}
    assert list(sent) == ["dispatch_all_to_all", "combine_all_to_all"]
    for operator in sent.values():
        assert number(operator.moved_bytes(Place.LINK)) == pytest.approx(64 * 2 * 4096 * 2 * 3 / 4)
    up = next(op for _, op in one if op.name == "expert_up_proj")
    before = next(op for _, op in whole if op.name == "expert_up_proj")
    # rows of 4 replicas over 4 devices equal those of one
    assert number(up.matmul_flops) == pytest.approx(number(before.matmul_flops))
    assert up.reads[1].tensor.elements == 8 * 4096 * 14336 / 4
    # 256 tokens use all but 8 (3/4)^256 of the experts, and a device has a quarter of them
    read = 8 * (1 - (1 - 2 / 8) ** 256) / 4 * 4096 * 14336 * 2
    assert number(up.read_bytes(Role.WEIGHT)) == pytest.approx(read)


@pytest.mark.parametrize("tensor", [1, 2])
def test_replicas_that_gather_send_every_token_to_all_others(tensor: int) -> None:
    """Mixtral, 4 devices and 64 sequences a replica: each receives 3/4 of the tokens of all replicas, whatever experts
    they choose, and sends as much of its sums."""
    whole = models.load("mixtral-8x7b").graph(decode(64.0, 100.0))
    one = shard(Sharding(tensor=tensor, data=4 // tensor, expert=4, gathers=True))(whole)
    check(one)
    sent = [op for _, op in one if op.name.startswith(("dispatch", "combine"))]
    assert [op.name for op in sent] == ["dispatch_all_gather", "combine_reduce_scatter"]
    for operator in sent:
        assert is_of_all_ranks(operator)
        assert number(operator.moved_bytes(Place.LINK)) == pytest.approx(64 * 4 / tensor * 4096 * 2 * 3 / 4)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_engines_gather_tokens_within_a_node_and_send_rows_beyond(engine: str) -> None:
    options = {
        "engine": engine,
        "batching": "continuous",
        "batch_size": 64,
        "network": "infiniband-ndr",
        "efficiency": "calibrated",
    }
    for devices, names in ((8, {"dispatch_all_gather"}), (16, {"dispatch_all_to_all"})):
        sizes = {"data_parallel_size": devices, "expert_parallel_size": devices}
        rows = analyze("qwen3-30b-a3b", "h100-sxm", **options, **sizes).to_dict()["stages"]["decode"]["operators"]
        assert {row["name"] for row in rows if row["name"].startswith("dispatch")} == names


def test_devices_of_a_tensor_group_split_the_rows_of_a_replica() -> None:
    """Mixtral, 2 replicas of 64 sequences on 2 devices each: a device sends half of 64 x 2 rows, 3/4 over the link."""
    whole = models.load("mixtral-8x7b").graph(decode(64.0, 100.0))
    one = shard(Sharding(tensor=2, data=2, expert=4))(whole)
    sent = {op.name: op for _, op in one if op.name.endswith("all_to_all")}
    assert list(sent) == ["dispatch_all_to_all", "combine_all_to_all"]
    for operator in sent.values():
        assert number(operator.moved_bytes(Place.LINK)) == pytest.approx(64 * 2 * 4096 * 2 / 2 * 3 / 4)


EXPERTS = [name for name in NAMES if any(op.name == "expert_down_proj" for _, op in graph_of(name, "decode"))]


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_expert_parallelism_keeps_the_data_flow_and_all_expert_weights(name: str, sizes: tuple[int, int]) -> None:
    tensor, data = sizes
    for stage in STEPS:
        graph = graph_of(name, stage)
        for sequence in {False, tensor > 1}:
            one = shard(Sharding(tensor=tensor, data=data, expert=tensor * data, sequence=sequence))(graph)
            check(one)
            for before, after in zip(graph.blocks, one.blocks, strict=True):
                stored, part = before.weights(), after.weights()
                for weight in (w for w in stored if w.startswith("expert_") and w.endswith("proj.weight")):
                    assert number(part[weight].elements) * tensor * data == pytest.approx(
                        number(stored[weight].elements)
                    )
                names = [op.name for op in after.operators]
                assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ODD])
@pytest.mark.parametrize("devices", [2])
def test_a_single_point_equals_the_point_of_a_sweep(name: str, devices: int) -> None:
    model, contexts = models.load(name), np.array([1.0, 100.0, 5000.0])
    plain: dict[str, int] = {"expert": devices} if name == "mixtral-8x7b" else {}
    for sizes in (plain, {"sequence": True}):
        together = shard(Sharding(tensor=devices, **sizes))(model.graph(decode(4.0, contexts)))
        for at, context in enumerate(contexts):
            single = shard(Sharding(tensor=devices, **sizes))(model.graph(decode(4.0, np.array([context]))))
            for (_, a), (_, b) in zip(single, together, strict=True):
                for of in ("flops", "traffic_bytes"):
                    several = np.broadcast_to(getattr(b, of), contexts.shape)
                    assert number(getattr(a, of)) == several[at]


def test_devices_beyond_the_link_need_a_network() -> None:
    with pytest.raises(UserError, match=r"16 devices .* nvlink of h100-sxm connects 8; .*network .*infiniband-ndr"):
        answer("llama-2-70b", "h100-sxm", tensor_parallel_size=16)
    found = answer("llama-2-70b", "h100-sxm", tensor_parallel_size=16, network="infiniband-ndr")
    reduce = operators(found, "prefill")["attn_all_reduce"]
    # two groups of 8: 2 x 7/8 of 16.8 MB at 450 GB/s inside; 2 x 1/2 of an eighth at 50 GB/s across; overlapped
    size = 1024 * 8192 * 2
    assert reduce["time_s"] == pytest.approx(max(2 * 7 / 8 * size / 450e9, 2 * 1 / 2 * size / 8 / 50e9))
    assert reduce["bound"] == "link"


def test_a_network_is_not_used_within_the_link() -> None:
    plain = answer("llama-2-70b", "h100-sxm", tensor_parallel_size=8)
    joined = answer("llama-2-70b", "h100-sxm", tensor_parallel_size=8, network="ethernet-10g")
    assert joined["metrics"] == plain["metrics"]


def test_wrong_parallel_sizes_are_rejected_with_a_reason() -> None:
    wrong = {
        "needs tensor_parallel_size > 1": {"sequence_parallel": "on"},
        "over which experts are distributed: 2 x 1 = 2": {"tensor_parallel_size": 2, "expert_parallel_size": 4},
        "did you mean 'infiniband-ndr'": {"network": "infiniband"},
        "a whole number from 1 to": {"tensor_parallel_size": "1.5"},
        "no link to other devices": {"tensor_parallel_size": 2, "hardware": "cerebras-wse-3"},
    }
    for reason, options in wrong.items():
        with pytest.raises(UserError, match=reason):
            answer("mixtral-8x7b", **({"hardware": "h100-sxm"} | options))  # type: ignore[arg-type]


def test_collectives_without_latency_use_the_ring() -> None:
    from llmviewer.ops.collective import CollectiveShape

    shape = CollectiveShape(pattern=Collective.ALL_REDUCE, devices=8.0, size_bytes=1e6)
    ways = {way.name: (way.steps, way.link) for way in shape.algorithms()}
    assert ways == {"ring": (14.0, 1.75), "tree": (6.0, 2.0), "one-shot": (1.0, 7.0)}


def test_with_latency_small_messages_are_one_shot_and_large_ones_use_the_ring() -> None:
    """8 devices, 450 GB/s, 5 us: one-shot 5 us + 7 s/b; tree 30 us + 2 s/b; ring 70 us + 1.75 s/b."""
    from dataclasses import replace

    from llmviewer.ops.collective import CollectiveShape
    from llmviewer.timing.roofline import collective_time, ideal

    operator = next(op for _, op in shard(Sharding(tensor=8))(graph_of("llama-2-7b", "decode"))
                    if op.name == "attn_all_reduce")  # fmt: skip
    rates = replace(ideal(operator, load("h100-sxm")), hop_s=5e-6)
    for size, expected in ((1e4, 5e-6 + 7e4 / 450e9), (1e7, 30e-6 + 2e7 / 450e9), (1e9, 70e-6 + 1.75e9 / 450e9)):
        shape = CollectiveShape(pattern=Collective.ALL_REDUCE, devices=8.0, size_bytes=size)
        assert number(collective_time(shape, rates)) == pytest.approx(expected)


def test_groups_whose_devices_have_a_port_for_each_other_send_directly() -> None:
    """Four groups of eight: an all-reduce takes two steps in a group and one between groups, an all-gather one of each;
    one group needs no network, and ports are unknown where a link joins any number of devices."""
    from llmviewer.ops.collective import CollectiveShape

    def direct(pattern: Collective, devices: float, near: float) -> list[tuple[float, ...]]:
        shape = CollectiveShape(pattern=pattern, devices=devices, size_bytes=1e6, near=near)
        return [(way.steps, way.link, way.network) for way in shape.direct()]

    assert direct(Collective.ALL_REDUCE, 32.0, 8.0) == [(3.0, 2 * 7 / 8, 3 / 8)]
    assert direct(Collective.ALL_GATHER, 32.0, 8.0) == [(2.0, 7 / 8, 3 / 32)]
    assert direct(Collective.ALL_REDUCE, 8.0, 8.0) == [(2.0, 2 * 7 / 8, 0.0)]
    assert direct(Collective.ALL_REDUCE, 8.0, float("inf")) == direct(Collective.SEND, 2.0, 8.0) == []


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_aggregate_bandwidth_speeds_decode(devices: int) -> None:
    """Survey, section 6.1 and Fig. 20: n memories in parallel read the weights n times as fast."""
    one = answer("llama-2-70b", "h100-sxm")["stages"]["decode"]["time_s"]
    several = answer("llama-2-70b", "h100-sxm", tensor_parallel_size=devices)["stages"]["decode"]["time_s"]
    assert one / several == pytest.approx(devices, rel=0.02)
    assert one / several < devices


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_pass_without_logits_has_no_logit_collectives() -> None:
    """Medusa's heads compute nothing for a chunk without logits, which must not lead to a division by zero."""
    found = analyze("gemma-2-9b", "h100", output_len=3, max_num_batched_tokens=256, tensor_parallel_size="2",
                    sequence_parallel="on", speculative="medusa")  # fmt: skip
    assert float(found.analysis.tpot_s[0]) > 0.0
