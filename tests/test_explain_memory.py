"""Explained memory: the cache down to fields of the config, weights of all models on the device."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer.result.explanation.explain import explained
from llmviewer.result.explanation.node import TOLERANCE, Node, evaluated

DRAFT = "draft=llama-3.2-1b,tokens=4,acceptance=0.8"
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-3.1-8b", "h100", {"batch_size": 8}),
    ("llama-3.1-8b", "h100", {"engine": "vllm", "batch_size": 500, "batching": "continuous", "input_len": 8000}),
    ("llama-3.1-8b", "h100", {"kv_cache_dtype": "kv4", "kv_block_size": 16, "tensor_parallel_size": 2}),
    ("llama-3.1-8b", "h100", {"speculative": DRAFT, "batch_size": 4}),
    ("llama-3.1-8b", "h100", {"speculative": DRAFT, "batching": "chunked", "batch_size": 4}),
    ("llama-3.1-8b", "h100", {"prefix_cache": "0.9,shared", "batch_size": 8}),
    ("llama-3.1-8b", "h100", {"kv_reserve": "4096"}),
    ("llama-3.1-8b", "h100", {"kv_evict": "0.2", "batching": "static,longest=512"}),
    ("llama-3.1-8b", "h100", {"pipeline_parallel_size": "4,microbatches=8", "batch_size": 80}),
    ("gpt-oss-20b", "h200", {"engine": "vllm", "batch_size": 4}),
    ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "batch_size": 2}),
    ("mamba-2.8b", "h100", {"speculative": "draft=mamba-130m,tokens=4,acceptance=0.8"}),
    ("qwen3-next-80b-a3b", "h200", {"batch_size": 2}),
    ("jamba-v0.1", "h200", {}),
)


@pytest.mark.parametrize(("model", "chip", "options"), CASES)
@pytest.mark.parametrize("name", ["kv_cache_bytes", "weights_bytes", "total_bytes"])
def test_memory_is_given_again_and_leaves_no_rest(model: str, chip: str, options: dict[str, Any], name: str) -> None:
    result = lv.analyze(model, chip, **options)
    tree = explained(result, f"memory.{name}")
    assert tree.value == pytest.approx(float(result.memory[name]), rel=1e-9)
    assert abs(tree.evaluated() - tree.value) <= TOLERANCE * tree.value
    assert [node.name for node in tree.root.walk() if node.name.startswith("other ")] == []
    assert [node.name for node in tree.root.walk() if not node.formula and not node.source] == []


def _cache(model: str, chip: str, **options: Any) -> Node:
    return explained(lv.analyze(model, chip, **options), "memory.kv_cache_bytes").root


def _sizes(node: Node) -> dict[str, float]:
    return {one.name: one.value for one in node.walk() if not one.children}


def test_the_cache_of_grouped_queries_by_hand() -> None:
    """Llama 3.1 8B: 2 caches of 32 layers x 8 sequences x 1151 tokens x 8 heads x 128 x 2 byte."""
    root = _cache("llama-3.1-8b", "h100", batch_size=8)
    assert [child.name for child in root.children] == ["layer.k_cache", "layer.v_cache"]
    assert root.value == 2 * 32 * 8 * (1024 + 128 - 1) * 8 * 128 * 2
    sizes = _sizes(root)
    assert {name: sizes[name] for name in ("layers", "sequences", "kv_heads", "head_dim", "bytes_per_element")} == {
        "layers": 32, "sequences": 8, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 2,
    }  # fmt: skip
    heads = next(node for node in root.walk() if node.name == "kv_heads")
    assert "num_key_value_heads of the config" in heads.source


def test_a_window_holds_no_more_than_its_tokens() -> None:
    """gpt-oss: sliding layers keep 128 tokens, full ones 1024 + 128 - 1."""
    tokens = {child.name: _child(child, "tokens").value for child in _cache("gpt-oss-20b", "h200").children}
    assert tokens["sliding.k_cache"] == 128
    assert tokens["full.k_cache"] == 1151


def test_a_latent_is_a_rank_and_a_rotated_key() -> None:
    """DeepSeek-V3: kv_lora_rank 512 + qk_rope_head_dim 64 elements per token and layer."""
    elements = _child(_cache("deepseek-v3", "h200", tensor_parallel_size=8).children[0], "elements")
    assert (elements.formula, elements.value) == ("kv_rank + rope_dim", 576)
    assert {child.name: child.value for child in elements.children} == {"kv_rank": 512, "rope_dim": 64}


def test_a_recurrent_state_has_no_tokens() -> None:
    """Mamba 2.8B: 64 layers x 5120 channels x (16 states + 4 columns) x 2 byte, at any length."""
    root = _cache("mamba-2.8b", "h100")
    assert root.value == 64 * 5120 * (16 + 4) * 2
    assert _sizes(root).keys().isdisjoint({"tokens", "context"})


def test_a_tensor_group_splits_the_heads() -> None:
    root = _cache("llama-3.1-8b", "h100", tensor_parallel_size=4)
    assert _sizes(root)["share"] == 0.25
    assert all("share" not in _sizes(_cache(model, "h200")) for model in ("jamba-v0.1", "qwen3-next-80b-a3b"))


def test_a_budget_of_the_free_memory_is_not_that_of_the_utilization() -> None:
    """The others, and 0.9 of what they leave of 80 GiB."""
    result = lv.analyze("llama-3.1-8b", "h100", kv_cache_free_gpu_memory_fraction=0.9)
    root = explained(result, "memory.budget_bytes").root
    others = float(result.memory["total_bytes"]) - float(result.memory["kv_cache_bytes"])
    assert _child(root, "others_bytes").value == pytest.approx(others)
    assert root.value == pytest.approx(others + 0.9 * (80 * 2**30 - others)) == pytest.approx(evaluated(root))
    assert (_child(root, "share").value, _child(root, "share").source) == (0.9, "--kv-cache-free-gpu-memory-fraction")
    assert _sizes(explained(lv.analyze("llama-3.1-8b", "h100"), "memory.budget_bytes").root)["share"] == 0.9


@pytest.mark.parametrize(
    ("chip", "source"), [("h100", "total_memory of torch"), ("rtx-4080", "part of the capacity that drivers")]
)
def test_a_capacity_that_an_engine_counts_is_not_that_of_the_data_sheet(chip: str, source: str) -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"engine": "vllm"})
    plain, served = (explained(lv.analyze("llama-3.2-1b", chip, **more), "memory.capacity_bytes").root for more in ways)
    assert served.value < plain.value
    assert source in served.source and source not in plain.source


def _child(node: Node, name: str) -> Node:
    return next(child for child in node.children if child.name == name)
