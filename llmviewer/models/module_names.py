"""Names of linear layers in checkpoints, by operator name."""

from __future__ import annotations

_ATTENTION = ("self_attn", "attn", "mixer")
_EXPERT = ("mlp.experts.0", "feed_forward.experts.0", "mixer.experts.0")
_FUSED = ("mlp.experts", "feed_forward.experts", "mixer.experts", "experts")  # all experts in one tensor
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mixer.shared_experts")
_MAMBA = ("mixer", "mamba")


def _under(parents: tuple[str, ...], leaf: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{leaf}" for parent in parents)


#: Operator name -> possible names of its matrix below `layers.N`, over all families.
MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": _under(_ATTENTION, "q_proj"),
    "k_proj": _under(_ATTENTION, "k_proj"),
    "v_proj": _under(_ATTENTION, "v_proj"),
    "qkv_proj": (
        "self_attn.qkv_proj",
        "self_attn.W_pack",
        "attn.c_attn",
        "attn.Wqkv",
        "norm_attn_norm.attn.Wqkv",
        "attention.wqkv",
        "attention.query_key_value",
        "self_attention.query_key_value",
    ),
    "o_proj": (
        "self_attn.o_proj",
        "self_attn.out_proj",
        "self_attn.dense",
        "attn.c_proj",
        "attn.out_proj",
        "norm_attn_norm.attn.out_proj",
        "attention.wo",
        "attention.dense",
        "self_attention.dense",
        "mixer.o_proj",
    ),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj",),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "index_q_proj": _under(("self_attn.indexer",), "wq_b"),
    "index_k_proj": _under(("self_attn.indexer",), "wk"),
    "index_weights_proj": _under(("self_attn.indexer",), "weights_proj"),
    "gate_proj": ("mlp.gate_proj", "feed_forward.gate_proj", "feed_forward.w1"),
    "up_proj": (
        "mlp.up_proj",
        "mlp.fc1",
        "fc1",
        "mlp.c_fc",
        "mlp.fc_in",
        "mlp.dense_h_to_4h",
        "feed_forward.up_proj",
        "feed_forward.w3",
        "ffn.up_proj",
        "mixer.up_proj",
    ),
    "down_proj": (
        "mlp.down_proj",
        "mlp.fc2",
        "fc2",
        "mlp.c_proj",
        "mlp.fc_out",
        "mlp.dense_4h_to_h",
        "feed_forward.down_proj",
        "feed_forward.w2",
        "ffn.down_proj",
        "mixer.down_proj",
    ),
    "gate_up_proj": ("mlp.gate_up_proj",),
    "expert_gate_proj": (
        *_under(_EXPERT, "gate_proj"),
        *_under(_FUSED, "gate_up_proj"),
        "block_sparse_moe.experts.0.w1",
        "ffn.experts.mlp.w1",
    ),
    "expert_up_proj": (
        *_under(_EXPERT, "up_proj"),
        *_under(_FUSED, "gate_up_proj"),
        *_under(_FUSED, "up_proj"),
        "block_sparse_moe.experts.0.w3",
        "ffn.experts.mlp.v1",
    ),
    "expert_down_proj": (
        *_under(_EXPERT, "down_proj"),
        *_under(_FUSED, "down_proj"),
        "block_sparse_moe.experts.0.w2",
        "ffn.experts.mlp.w2",
    ),
    "expert_gate_up_proj": _under(_FUSED, "gate_up_proj"),
    "shared_gate_proj": _under(_SHARED, "gate_proj"),
    "shared_up_proj": _under(_SHARED, "up_proj"),
    "shared_down_proj": _under(_SHARED, "down_proj"),
    "per_layer_input_gate": ("per_layer_input_gate",),
    "per_layer_projection": ("per_layer_projection",),
    "latent_in_proj": ("mixer.fc1_latent_proj",),
    "latent_out_proj": ("mixer.fc2_latent_proj",),
    "in_proj": _under(_MAMBA, "in_proj"),
    "x_proj": _under(_MAMBA, "x_proj"),
    "dt_proj": _under(_MAMBA, "dt_proj"),
    "in_proj_qkvz": ("linear_attn.in_proj_qkvz",),
    "in_proj_ba": ("linear_attn.in_proj_ba",),
    "in_proj_qkv": ("linear_attn.in_proj_qkv",),
    "in_proj_z": ("linear_attn.in_proj_z",),
    "in_proj_b": ("linear_attn.in_proj_b",),
    "in_proj_a": ("linear_attn.in_proj_a",),
    "out_proj": _under((*_MAMBA, "linear_attn"), "out_proj"),
    "output_gate": ("self_attn.output_gate",),
}


def names_of(operator: str) -> tuple[str, ...]:
    """Possible checkpoint names of an operator's matrix, below `layers.N`; `lm_head` is not in a layer."""
    return MODULES.get(operator, (operator,))
