"""Converts published configs for the class that runs them: renamed fields, or another model's class of equal shapes.

Parameter counts are checked against the published ones, so a wrong mapping is noticed.
"""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]


def as_published(config: Fields) -> Fields:
    """The unchanged config, which the library's class reads."""
    return config


def internlm2(config: Fields) -> Fields:
    """InternLM2 -> Llama: `wqkv` is q, k and v in one matrix; grouped-query attention; `bias` on attention only."""
    return {**config, "attention_bias": config.get("bias", False), "rope_scaling": None}


def baichuan(config: Fields) -> Fields:
    """Baichuan and Baichuan2 -> Llama: `W_pack` is q, k and v in one matrix; the 13B's ALiBi adds no product."""
    return {**config, "tie_word_embeddings": config.get("tie_word_embeddings", False)}


def chatglm(config: Fields) -> Fields:
    """ChatGLM2, ChatGLM3 and GLM-4-9b (remote code) -> Glm: fused QKV with bias, fused gate and up, half-rotary."""
    heads = config["num_attention_heads"]
    return {
        "vocab_size": config["padded_vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["ffn_hidden_size"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config["multi_query_group_num"] if config.get("multi_query_attention") else heads,
        "head_dim": config["kv_channels"],
        "attention_bias": config.get("add_qkv_bias", False),
        "max_position_embeddings": config["seq_length"],
        "rms_norm_eps": config["layernorm_epsilon"],
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "pad_token_id": 0,
    }


def minimax_text(config: Fields) -> Fields:
    """MiniMax-Text-01 as first published -> MiniMax: 1 in `attn_type_list` is softmax, 0 lightning attention."""
    names = {0: "linear_attention", 1: "full_attention"}
    return {**config, "layer_types": [names[kind] for kind in config["attn_type_list"]]}


def mimo(config: Fields) -> Fields:
    """MiMo-V2-Flash as published: 0/1 lists for windows and experts; the window field counts the query itself."""
    lists = {
        "layer_types": ("hybrid_layer_pattern", ("full_attention", "sliding_attention")),
        "mlp_layer_types": ("moe_layer_freq", ("dense", "sparse")),
    }
    named = {
        field: [labels[flag] for flag in config[source]]
        for field, (source, labels) in lists.items()
        if field not in config and isinstance(config.get(source), list)
    }
    return {**config, **named}
