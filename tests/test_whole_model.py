"""Facts of the model are those of the whole model, however many devices share it; those of a device are in `memory`."""

from __future__ import annotations

import pytest

from llmviewer.planning import contract_line
from llmviewer.planning.contract_line import subject

from .answers import answer

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-next-80b-a3b")
WAYS = (
    {"tensor_parallel_size": "4"},
    {"tensor_parallel_size": "2", "expert_parallel_size": "2"},
    {"pipeline_parallel_size": "2"},
    {"data_parallel_size": "2"},
    {"context_parallel_size": "2"},
    {"tensor_parallel_size": "2", "pipeline_parallel_size": "2", "quantization": "fp8", "kv_cache_dtype": "fp8"},
)


@pytest.mark.parametrize("model", MODELS)
def test_no_fact_of_the_model_depends_on_the_devices_that_share_it(model: str) -> None:
    for way in WAYS:
        if "expert_parallel_size" in way and model == "llama-3.1-8b":
            continue
        formats = {name: value for name, value in way.items() if not name.endswith("_size")}
        if "context_parallel_size" in way and model == "qwen3-next-80b-a3b":  # a state is no context
            continue
        assert answer(model, "h200", **way)["model"] == answer(model, "h200", **formats)["model"], way


def test_a_device_of_a_group_of_two_stores_half_of_the_cache() -> None:
    """Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 byte are 128 KiB per token; a device of two has 4 heads."""
    alone, group = answer("llama-3.1-8b", "h100"), answer("llama-3.1-8b", "h100", tensor_parallel_size="2")
    assert alone["model"]["kv_cache_bytes_per_token"] == group["model"]["kv_cache_bytes_per_token"] == 128 * 1024
    assert alone["memory"]["kv_cache_bytes_per_token_per_device"] == 128 * 1024
    assert group["memory"]["kv_cache_bytes_per_token_per_device"] == 64 * 1024
    tokens = 1024 + 128 - 1
    assert group["memory"]["kv_cache_bytes"] == tokens * 64 * 1024


def test_a_contract_reads_the_facts_of_the_whole_model() -> None:
    words = subject("llama-3.1-8b on h100, vllm, tp 2")
    assert contract_line.answer(words, {}).groups["model"]()["kv_cache_bytes_per_token"] == 128 * 1024


def test_a_latent_is_stored_on_every_device_of_a_tensor_group() -> None:
    """DeepSeek-V2-Lite: 27 layers x (512 + 64) x 2 byte, which a tensor group does not split."""
    group = answer("deepseek-v2-lite", "h100", tensor_parallel_size="2")
    per_token = 27 * 576 * 2
    assert group["model"]["kv_cache_bytes_per_token"] == per_token
    assert group["memory"]["kv_cache_bytes_per_token_per_device"] == per_token
