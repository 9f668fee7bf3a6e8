"""Blocks of vLLM's KV cache: groups of layers, padding, windows, and the concurrency that they allow."""

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.analysis.capacity import CacheBlocks
from llmviewer.analysis.limits import blocks_of_engine
from llmviewer.api.configuration import configuration
from tests.certificate.our_counts import published_config

H100 = "h100-sxm"


def blocks_of(model: str) -> CacheBlocks:
    one = configuration(model, H100, engine="vllm")
    found = blocks_of_engine(one.model, one.system)
    assert found is not None
    return found


def test_layers_of_one_kind_form_one_group() -> None:
    """32 layers, 2 x 8 heads x 128 x 2 byte each; a request of 100 tokens takes 7 blocks of 16."""
    found = blocks_of("llama-3.1-8b")
    assert (found.layers, found.groups, found.token_bytes) == (32, {np.inf: 1}, 2 * 8 * 128 * 2)
    assert found.blocks_of(100.0, 8192.0) == 7


def test_windowed_layers_reserve_the_window_and_a_pass() -> None:
    """12 full and 12 windowed layers share blocks: 8,192 / 16, and (128 - 1 + 1,000) tokens, 71 blocks + 1."""
    found = blocks_of("gpt-oss-20b")
    assert (found.layers, found.groups) == (12, {128.0: 1, np.inf: 1})
    assert found.blocks_of(8192.0, 1000.0) == 512 + (71 + 1)


def test_groups_of_layers_are_padded_to_each_other() -> None:
    """Gemma-3-27B: 52 windowed and 10 full layers make 6 + 1 groups of 10, so that 8 places stay empty."""
    found = blocks_of("gemma-3-27b")
    assert found.layers == 10 and found.groups == {1024.0: 6, np.inf: 1}


def test_kinds_of_similar_numbers_form_one_group_each() -> None:
    """12 layers are fewer than 1.25 x 10: groups of 12, of which one has 2 empty places."""
    similar = CacheBlocks(layers=12, groups={np.inf: 1, 64.0: 1}, token_bytes=2.0, tokens=16.0)
    assert similar.block_bytes == 12 * 2 * 16
    assert similar.capacity_tokens(10.9 * similar.block_bytes) == 10 // 2 * 16


def test_latent_attention_has_blocks_of_64_tokens() -> None:
    """(512 + 64) x 2 byte per token and layer."""
    found = blocks_of("deepseek-v2-lite")
    assert (found.tokens, found.token_bytes) == (64, 576 * 2)


def test_concurrency_is_blocks_over_blocks_of_the_longest_context() -> None:
    memory = lv.analyze("gpt-oss-20b", H100, engine="vllm==0.19", max_model_len=8192).memory
    blocks = blocks_of("gpt-oss-20b")
    whole = np.floor(memory["kv_cache_budget_bytes"] / blocks.block_bytes)
    assert memory["max_concurrency"] == pytest.approx(whole / (512 + 513))
    assert memory["kv_cache_tokens"] == whole // 2 * 16


def test_kernels_without_an_engine_report_no_tokens() -> None:
    assert lv.analyze("llama-3.1-8b", H100).memory["kv_cache_tokens"] is None


def test_blocks_of_a_hybrid_hold_a_recurrent_state() -> None:
    """Qwen3-Next: a state of 524,288 + 32,768 numbers in 16 bit, a key and value of 2 heads of 256 numbers.

    2 x 557,056 bytes are those of 544 tokens of 2,048 bytes, in steps of 16; 36 recurrent layers make three groups
    of 12, which take a block each, beside the one of 12 layers with keys.
    """
    found = blocks_of("qwen3-next-80b-a3b")
    assert (found.tokens, found.layers, found.groups, found.state_groups) == (544, 12, {np.inf: 1}, 3)
    assert found.block_bytes == 12 * 544 * 2048 >= 12 * 2 * 557_056
    assert found.blocks_of(1000.0, 8192.0) == 2 + 3
    assert found.capacity_tokens(100 * found.block_bytes) == 25 * 544


def test_the_block_size_is_the_one_that_vllm_prints() -> None:
    """672 tokens for Nemotron Nano 9B v2: https://github.com/vllm-project/vllm/issues/24280.

    128 x 80 x 128 numbers of state and 12,288 channels of convolution, in 16 bit; 8 heads of 128 keys and values.
    """
    fields = {**published_config("nemotron-h-8b"), "mamba_num_heads": 128, "mamba_head_dim": 80, "head_dim": 128}
    one = configuration(fields, H100, engine="vllm")
    found = blocks_of_engine(one.model, one.system)
    assert found is not None and found.tokens == 672


def test_recurrent_models_have_no_blocks() -> None:
    one = configuration("mamba-2.8b", H100, engine="vllm")
    assert blocks_of_engine(one.model, one.system) is None
