"""Configs of hybrids as published, sparse or with their unusual fields: the library's parameters and matmul FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.models.load import from_fields
from tests.certificate.errors import UnavailableError
from tests.certificate.library_defaults import default_config
from tests.certificate.our_counts import our_decode, our_prefill
from tests.certificate.torch_counts import count_decode, count_prefill, parameter_count, reduced

PROMPT, CACHED = 48, 40
#: The library mixes the sequences of a batch of RWKV.
BATCH = {"rwkv": 1}
#: The case -> fields, model_type first; what is not stated takes the defaults of the class.
CONFIGS: dict[str, dict[str, Any]] = {
    "bamba with listed attention": {
        "model_type": "bamba",
        "vocab_size": 1000,
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_indices": [1, 3],
        "mamba_n_heads": 16,
        "mamba_proj_bias": True,
    },
    "granite without experts": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "mamba", "attention"],
        "vocab_size": 1000,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "nope",
        "shared_intermediate_size": 8192,
        "mamba_d_state": 128,
        "residual_multiplier": 0.22,
        "tie_word_embeddings": True,
    },
    "granite with experts": {
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "vocab_size": 1000,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_n_heads": 48,
        "num_local_experts": 64,
        "num_experts_per_tok": 6,
    },
    "falcon_h1 with a norm and biases": {
        "model_type": "falcon_h1",
        "vocab_size": 1000,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "mamba_d_ssm": 768,
        "mamba_n_heads": 24,
        "mamba_d_head": 32,
        "mamba_n_groups": 2,
        "mamba_rms_norm": True,
        "projectors_bias": True,
    },
    "lfm2 with its older names": {
        "model_type": "lfm2",
        "vocab_size": 1000,
        "hidden_size": 1024,
        "block_ff_dim": 6656,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2],
        "conv_L_cache": 3,
    },
    "lfm2_moe with listed layers": {
        "model_type": "lfm2_moe",
        "vocab_size": 1000,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
    },
    "kimi_linear with the published fields": {
        "model_type": "kimi_linear",
        "pad_token_id": 0,
        "vocab_size": 1000,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 72,
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "mla_use_nope": True,
        "moe_router_activation_func": "sigmoid",
        "linear_attn_config": {
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
            "head_dim": 64,
            "num_heads": 8,
            "short_conv_kernel_size": 4,
        },
    },
    "recurrent_gemma with one key-value head": {
        "model_type": "recurrent_gemma",
        "vocab_size": 1000,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "lru_width": 512,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "zamba2 with two shared blocks and adapters": {
        "model_type": "zamba2",
        "vocab_size": 1000,
        "hidden_size": 256,
        "num_hidden_layers": 7,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "num_attention_heads": 8,
        "num_mem_blocks": 2,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "adapter_rank": 16,
        "add_bias_linear": True,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
    },
    "rwkv with one sequence": {
        "model_type": "rwkv",
        "vocab_size": 1000,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "context_length": 1024,
        "rescale_every": 6,
    },
}


@pytest.mark.parametrize("case", CONFIGS)
def test_parameters_equal_those_of_the_library(case: str) -> None:
    try:
        expected = parameter_count(CONFIGS[case])
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert from_fields(CONFIGS[case]).parameters == expected


@pytest.mark.parametrize("case", CONFIGS)
def test_matmul_flops_equal_those_of_the_library(case: str) -> None:
    try:
        small = reduced(CONFIGS[case])
        batch = BATCH.get(small["model_type"], 2)
        prefill, decode = count_prefill(small, batch, PROMPT), count_decode(small, batch, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    for ours, theirs in ((our_prefill(small, batch, PROMPT), prefill), (our_decode(small, batch, CACHED), decode)):
        assert (ours.linear, ours.attention, ours.lm_head) == (theirs.linear, theirs.attention, theirs.lm_head)


def test_zamba_differs_by_the_products_with_broadcast_weights() -> None:
    """The library copies x_proj and dt_proj before it multiplies; their 2 inner (2 rank + 2 state) are recurrence."""
    try:
        small = reduced(default_config("zamba"))
        prefill, decode = count_prefill(small, 2, PROMPT), count_decode(small, 2, CACHED)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    products = small["num_hidden_layers"] * 2 * (2 * 3712) * (2 * 232 + 2 * 16)
    for tokens, ours, theirs in (
        (2 * PROMPT, our_prefill(small, 2, PROMPT), prefill),
        (2, our_decode(small, 2, CACHED), decode),
    ):
        assert (ours.linear - tokens * products, ours.attention) == (theirs.linear, theirs.attention)
        assert theirs.recurrence >= tokens * products
