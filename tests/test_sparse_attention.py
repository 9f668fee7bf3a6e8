"""Attention to chosen keys by hand: the indexer of DeepSeek-V3.2 and the compressed entries of DeepSeek-V4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmviewer.core.ir import Block, Operator
from llmviewer.core.workload import Group, decode, prefill
from llmviewer.hardware.specs import load as load_chip
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model
from llmviewer.techniques.kernels.flash_attention import flash_attention

H, R, NOPE, ROPE, V = 4, 32, 16, 8, 16
INDEX_HEADS, INDEX_DIM, CHOSEN = 2, 16, 64
BATCH, CACHED = 3, 999
V32: dict[str, Any] = {
    "model_type": "deepseek_v32", "hidden_size": 128, "vocab_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": H, "q_lora_rank": 48, "kv_lora_rank": R, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
    "v_head_dim": V, "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "index_topk": CHOSEN,
    "first_k_dense_replace": 1, "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "dtype": "bfloat16",
}  # fmt: skip
V4: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 128, "vocab_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": H, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 48, "o_groups": 2,
    "o_lora_rank": 16, "sliding_window": 128, "compress_ratios": [128, 4], "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": CHOSEN, "moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def v32() -> Model:
    return from_fields(V32)


@pytest.fixture(scope="module")
def v4() -> Model:
    return from_fields(V4)


def named(block: Block, name: str) -> Operator:
    return next(op for op in block.operators if op.name == name)


def flash_block(model: Model, step: Any, layer: int = 1) -> Block:
    return flash_attention(load_chip("h100"))(model.graph(step)).blocks[layer]


def test_the_indexer_scores_every_key_and_attention_reads_the_chosen_ones(v32: Model) -> None:
    """Absorbed form: scores in r + rope elements, outputs in r; 64 of 1,000 keys."""
    block, keys = flash_block(v32, decode(float(BATCH), float(CACHED))), CACHED + 1
    scores, attention = named(block, "index_scores"), named(block, "attention")
    assert scores.matmul_flops == 2 * BATCH * keys * INDEX_HEADS * (INDEX_DIM + 1)
    assert attention.matmul_flops == 2 * BATCH * CHOSEN * H * ((R + ROPE) + R)
    read = sum(
        float(a.elements)
        for a in attention.reads
        if a.tensor.name == "latent_cache" and a.tensor.place.value == "device"
    )
    assert read == BATCH * CHOSEN * (R + ROPE)


def test_eager_attention_multiplies_all_keys_as_the_library_does(v32: Model) -> None:
    scores = named(v32.graph(decode(float(BATCH), float(CACHED))).blocks[1], "qk_matmul")
    assert scores.matmul_flops == 2 * BATCH * (CACHED + 1) * H * (R + ROPE)
    assert scores.masked_flops == 2 * BATCH * (CACHED + 1 - CHOSEN) * H * (R + ROPE)


def test_a_prompt_shorter_than_the_choice_is_attended_in_full(v32: Model) -> None:
    """Pairs n (n + 1) / 2 of 64 tokens; the naive form is cheaper, nope + rope + v = 40 elements per pair."""
    n = CHOSEN
    attention = named(flash_block(v32, prefill(1.0, float(n))), "attention")
    assert attention.matmul_flops == n * (n + 1) / 2 * 2 * H * (NOPE + ROPE + V)


def test_a_longer_prompt_attends_to_the_choice_only(v32: Model) -> None:
    """The first 64 tokens see all keys before them, the other 136 see 64 each."""
    pairs = CHOSEN * (CHOSEN + 1) / 2 + 136 * CHOSEN
    block = flash_block(v32, prefill(1.0, 200.0))
    assert named(block, "attention").matmul_flops == pairs * 2 * H * (2 * R + ROPE)
    assert named(block, "index_scores").matmul_flops == 200 * 201 / 2 * 2 * INDEX_HEADS * (INDEX_DIM + 1)


def test_the_cache_holds_latents_and_index_keys(v32: Model) -> None:
    states = v32.graph(decode(1.0, 1.0)).blocks[1].states
    assert {state.name: state.per_token for state in states} == {"latent_cache": R + ROPE, "index_cache": INDEX_DIM}


def test_entries_of_four_tokens_are_seen_once_they_end() -> None:
    """Positions 7 ... 12 see 1 2 2 2 2 3 entries of 4 tokens; at most 2 of them: 1 2 2 2 2 2."""
    group = Group(batch_size=1.0, new_tokens=6.0, cached_tokens=6.0, logit_positions=1.0)
    assert group.entries(4.0) == 3.0
    assert group.entry_pairs(4.0) == 12.0
    assert group.entry_pairs(4.0, 2.0) == 11.0


def test_compressed_layers_see_the_window_and_entries(v4: Model) -> None:
    """After 1,000 tokens: 128 in the window and 7 entries of 128 tokens, or 64 chosen of 250 entries of 4."""
    step = decode(float(BATCH), float(CACHED))
    for layer, entries in ((1, 7), (2, CHOSEN)):
        attention = named(flash_block(v4, step, layer), "attention")
        assert attention.matmul_flops == 2 * BATCH * (128 + entries) * H * (32 + 32)
    scores = named(flash_block(v4, step, 2), "index_scores")
    assert scores.matmul_flops == 2 * BATCH * 250 * 2 * 16


def test_compressed_layers_cache_a_window_and_few_elements_per_token(v4: Model) -> None:
    states = {state.name: state for state in v4.graph(decode(1.0, 1.0)).blocks[2].states}
    assert (states["latent_cache"].per_token, states["latent_cache"].window) == (32, 128)
    assert states["compressed_cache"].per_token == 32 / 4
    assert states["index_cache"].per_token == 16 / 4


def test_residual_streams_are_projected_in_full_width(v4: Model) -> None:
    """4 streams of 128 elements give 4 + 4 + 16 weights per token before each part."""
    block = v4.graph(decode(float(BATCH), 8.0)).blocks[1]
    assert named(block, "attn_hc_proj").matmul_flops == 2 * BATCH * (4 * 128) * 24
    assert float(np.sum(named(block, "mlp_add").writes[0].elements)) == BATCH * 4 * 128
