"""Memory as an engine's version counts it: profiling run, framework, graphs, tables, and the KV budget they leave."""

from dataclasses import replace

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.analysis import engine_parts
from llmviewer.analysis.limits import graph_of_engine
from llmviewer.api.configuration import configuration
from llmviewer.core.errors import UserError
from llmviewer.timing import engine

GIB, MIB = 2.0**30, 2.0**20
H100 = "h100-sxm"


def memory(model, **options):
    return lv.analyze(model, H100, engine=options.pop("engine", "vllm==0.19"), **options).memory


def items(model, **options):
    return {item["name"]: item for item in memory(model, **options)["items"]}


def test_the_kv_budget_is_what_the_parts_leave_of_the_reported_capacity():
    """0.95 x 79.18 GiB, which CUDA reports of 80, - weights - activations - framework."""
    found = memory("llama-3.1-8b", gpu_memory_utilization=0.95)
    assert found["capacity_bytes"] == pytest.approx(79.18 * GIB)
    others = sum(found[f"{name}_bytes"] for name in ("weights", "activations", "framework", "cuda_graphs"))
    assert found["kv_cache_budget_bytes"] == pytest.approx(0.95 * 79.18 * GIB - others)


@pytest.mark.parametrize(("chip", "engine", "gib"), [("a10", "sglang", 22.05), ("m4-max", "llama.cpp", 96.0)])
def test_every_engine_sees_what_the_driver_reports(chip, engine, gib):
    assert lv.analyze("llama-3.2-1b", chip, engine=engine).memory["capacity_bytes"] == pytest.approx(gib * GIB)
    sheet = configuration("llama-3.2-1b", chip).chip.memory_bytes
    assert lv.analyze("llama-3.2-1b", chip).memory["capacity_bytes"] == sheet


def test_an_assumed_share_of_the_memory_is_named():
    """98 % of 16 GiB, as no log of an RTX 4080 states what CUDA reports."""
    found = lv.analyze("llama-3.2-1b", "rtx-4080", engine="sglang").to_dict()
    assert found["memory"]["capacity_bytes"] == pytest.approx(0.98 * 16 * GIB)
    assert "the driver reports 98% of rtx-4080's memory" in found["provenance"]["assumed"]


def test_items_add_up_to_the_parts_that_contain_them():
    found = memory("mistral-small-3.1-24b", engine="vllm==0.21")
    for part in ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "cuda_graphs_bytes"):
        assert sum(item["bytes"] for item in found["items"] if item["within"] == part) == pytest.approx(found[part])
    assert {item["basis"] for item in found["items"]} == {"counted", "measured", "assumed"}


def test_the_sampler_takes_bytes_per_sequence_and_entry_of_the_vocabulary():
    """4 byte x 256 sequences x 128,256 entries, 2 hidden states of 4,096 x 2 byte for 1,000 tokens, and 1 GiB."""
    one = configuration("llama-3.1-8b", H100, engine="vllm", max_num_seqs=256, max_num_batched_tokens=1000)
    own = one.system.engine.memory
    constants = replace(own, logit_bytes=4.0, token_hidden=2.0, sampler_gib=1.0)
    expected = 4 * 256 * 128256 + 1000 * 4096 * 2 * 2 + GIB
    assert engine_parts.sampler_bytes(one.model, constants) == pytest.approx(expected)


def test_tensor_parallelism_does_not_divide_the_sampler():
    alone, split = memory("qwen2.5-7b"), memory("qwen2.5-7b", tensor_parallel_size=2)
    assert split["activations_bytes"] == alone["activations_bytes"]
    assert split["framework_bytes"] > alone["framework_bytes"]


def test_a_layer_keeps_gate_up_and_their_product():
    """3 x 11,008 values per token and 4 hidden states of 4,096, in 2 byte."""
    one = configuration("llama-2-7b", H100, engine="vllm", max_num_batched_tokens=100)
    constants = replace(one.system.engine.memory, layer_hidden=4.0)
    graph = graph_of_engine(one.model, one.system)
    found = engine_parts.layer_bytes(one.model, one.system, graph, constants)
    assert found == pytest.approx(100 * 2 * (3 * 11008 + 4 * 4096))


def test_experts_keep_sorted_inputs_and_outputs_of_the_chosen():
    """2 of 8 experts, each 3 x 14,336 / 2 values per token on one of two devices, and 2 x 4,096."""
    one = configuration("mixtral-8x7b", H100, engine="vllm", tensor_parallel_size=2)
    block = next(block for block in graph_of_engine(one.model, one.system).blocks if block.is_layer)
    assert engine_parts.intermediate_values(block, 4096.0) == (2 * (3 * 7168 + 2 * 4096), True)


def test_fewer_sequences_leave_more_to_the_cache():
    many, few = memory("qwen3-8b"), memory("qwen3-8b", max_num_seqs=256)
    assert few["kv_cache_budget_bytes"] > many["kv_cache_budget_bytes"] + GIB


def test_rotary_tables_cover_the_longest_context():
    """131,072 positions x 128 x 2 byte = 32 MiB."""
    assert items("llama-3.1-8b")["rotary tables"]["bytes"] == 32 * MIB


def test_the_allocator_rounds_large_matrices_to_segments():
    """Qwen2.5-7B per layer: qkv 31.5 -> 32 MiB, gate and up 259 -> 260, down 129.5 -> 130; o 24.5 is split off at 26.

    28 layers x 2 MiB, and both tables 1,039.5 -> 1,040.
    """
    assert items("qwen2.5-7b")["allocator's rounding"]["bytes"] == pytest.approx((28 * 2 + 2 * 0.5) * MIB)


def test_mxfp4_experts_are_padded():
    """2,880 -> 2,944 rows (a multiple of 128) x 3,072 columns (of 256): 24 layers x 32 experts x 3 matrices."""
    added = 24 * 32 * 3 * (2944 * 3072 - 2880 * 2880) * 4.25 / 8
    assert items("gpt-oss-20b")["padding of MXFP4 experts"]["bytes"] == pytest.approx(added)


def test_graphs_are_in_the_budget_since_0_21():
    before, since = (items("llama-3.1-8b", engine=f"vllm=={version}")["CUDA graphs"] for version in ("0.19", "0.21"))
    assert (before["within"], since["within"]) == ("", "cuda_graphs_bytes")


def test_an_eager_engine_captures_no_graphs():
    assert "CUDA graphs" not in items("llama-3.1-8b", enforce_eager=True)
    assert memory("llama-3.1-8b", engine="vllm==0.21", enforce_eager=True)["cuda_graphs_bytes"] == 0
    assert configuration("llama-3.1-8b", H100, engine="vllm", enforce_eager=True).system.engine.graph_tokens == 0.0


def test_a_version_chooses_the_preset_and_its_constants():
    old, new = (configuration("llama-3.1-8b", H100, engine=f"vllm=={v}").system.engine for v in ("0.11.0", "0.19.1"))
    assert old.memory.logit_bytes > 2 * new.memory.logit_bytes
    assert engine.load("vllm==0.7.2").name == "vllm-v0" and engine.load("vllm").on(a100()).memory.first == "0.21"


def a100():
    return configuration("llama-3.1-8b", "a100-80gb-sxm").chip


def test_chips_that_vllm_does_not_call_large_profile_fewer_sequences():
    memories = [
        configuration("llama-3.1-8b", chip, engine="vllm").system.engine.memory for chip in ("a100", H100, "l4")
    ]
    assert [one.sequences for one in memories] == [256, 1024, 256]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vllm==new", "'new' is not a version number such as 0.19"),
        ("vllm==", "a version must follow '=='"),
        ("vlm==0.19", "did you mean 'vllm'"),
    ],
)
def test_an_unknown_version_is_one_clear_line(name, message):
    with pytest.raises(UserError, match=message):
        configuration("llama-3.1-8b", H100, engine=name)


@pytest.mark.parametrize("option", [{"max_num_seqs": 8}, {"max_model_len": 4096}, {"enforce_eager": True}])
def test_limits_of_an_engine_need_one(option):
    with pytest.raises(UserError, match="it needs an engine"):
        configuration("llama-3.1-8b", H100, **option)


def test_without_a_limit_of_tokens_the_activations_are_those_of_the_passes():
    one = configuration("llama-3.1-8b", H100, engine="vllm", max_num_batched_tokens=0)
    assert np.isinf(one.system.engine.memory.tokens)
    unlimited = memory("llama-3.1-8b", max_num_batched_tokens=0, batch_size=64)
    assert unlimited["activations_bytes"] > memory("llama-3.1-8b", batch_size=64)["activations_bytes"]
