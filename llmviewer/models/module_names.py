"""Names of linear layers in checkpoints, by operator name."""

from __future__ import annotations

_ATTENTION = ("self_attn", "attn", "mixer")
_EXPERT = ("mlp.experts.0", "feed_forward.experts.0", "mixer.experts.0", "experts.0")
_FUSED = (  # all experts in one tensor
    *("mlp.experts", "feed_forward.experts", "mixer.experts", "experts", "block_sparse_moe.experts"),
)
_SHARED = (
    *("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mixer.shared_experts"),
    *("mlp.shared_mlp", "block_sparse_moe.shared_experts"),
)
_INDEXER = "self_attn.indexer"
_COMPRESSOR = "self_attn.compressor"
_MAMBA = ("mixer", "mamba")


def _under(parents: tuple[str, ...], leaf: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{leaf}" for parent in parents)


#: Operator name -> possible names of its matrix below `layers.N`, over all families.
MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": (*_under(_ATTENTION, "q_proj"), "attention.self.query", "attention.q_lin"),
    "k_proj": (*_under(_ATTENTION, "k_proj"), "attention.self.key", "attention.k_lin"),
    "v_proj": (*_under(_ATTENTION, "v_proj"), "attention.self.value", "attention.v_lin"),
    "qkv_proj": (
        "self_attn.qkv_proj",
        "self_attn.q_proj",  # Kimi Linear: three matrices, read in one pass
        "self_attn.W_pack",
        "attn.c_attn",
        "attn.Wqkv",
        "attn.qkv",
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
        "attn.proj",
        "attn.out_proj",
        "norm_attn_norm.attn.out_proj",
        "attention.wo",
        "attention.dense",
        "self_attention.dense",
        "attention.output.dense",
        "attention.out_lin",
        "mixer.o_proj",
        "self_attn.o_b_proj",
    ),
    "adaln_proj": ("adaLN_modulation.1",),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj",),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "kv_proj": ("self_attn.kv_proj",),
    "o_a_proj": ("self_attn.o_a_proj",),
    "compressed_kv_proj": (f"{_COMPRESSOR}.kv_proj",),
    "compressed_gate_proj": (f"{_COMPRESSOR}.gate_proj",),
    "index_q_proj": (f"{_INDEXER}.wq_b", f"{_COMPRESSOR}.indexer.q_b_proj"),
    "index_k_proj": (f"{_INDEXER}.wk",),
    "index_kv_proj": (f"{_COMPRESSOR}.indexer.kv_proj",),
    "index_gate_proj": (f"{_COMPRESSOR}.indexer.gate_proj",),
    "index_weights_proj": (f"{_INDEXER}.weights_proj", f"{_COMPRESSOR}.indexer.scorer.weights_proj"),
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
        "intermediate.dense",
        "ffn.lin1",
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
        "output.dense",
        "ffn.lin2",
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
    "shared_gate_up_proj": ("shared_mlp.input_linear",),
    "shared_down_proj": (*_under(_SHARED, "down_proj"), "shared_mlp.output_linear"),
    "per_layer_input_gate": ("per_layer_input_gate",),
    "per_layer_projection": ("per_layer_projection",),
    "latent_in_proj": ("mixer.fc1_latent_proj",),
    "latent_out_proj": ("mixer.fc2_latent_proj",),
    "in_proj": _under((*_MAMBA, "conv"), "in_proj"),
    "x_proj": _under(_MAMBA, "x_proj"),
    "dt_proj": _under(_MAMBA, "dt_proj"),
    "in_proj_qkvz": ("linear_attn.in_proj_qkvz",),
    "in_proj_ba": ("linear_attn.in_proj_ba",),
    "in_proj_qkv": ("linear_attn.in_proj_qkv",),
    "in_proj_z": ("linear_attn.in_proj_z",),
    "in_proj_b": ("linear_attn.in_proj_b",),
    "in_proj_a": ("linear_attn.in_proj_a",),
    "out_proj": _under((*_MAMBA, "linear_attn", "conv"), "out_proj"),
    "output_gate": ("self_attn.output_gate",),
    "b_proj": ("self_attn.b_proj",),
    "f_a_proj": ("self_attn.f_a_proj", "self_attn.forget_gate.f_a_proj"),
    "f_b_proj": ("self_attn.f_b_proj", "self_attn.forget_gate.f_b_proj"),
    "g_a_proj": ("self_attn.g_a_proj",),
    "g_b_proj": ("self_attn.g_b_proj",),
}


def names_of(operator: str) -> tuple[str, ...]:
    """Possible checkpoint names of an operator's matrix, below `layers.N`; `lm_head` is not in a layer."""
    return MODULES.get(operator, (operator,))
