"""Names of linear layers in checkpoints, by operator."""

from __future__ import annotations

_ATTENTION = ("self_attn", "attention", "self_attention", "attn", "mixer")
_FEED_FORWARD = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "mixer")
_EXPERTS = ("mlp.experts.0", "mlp.experts", "block_sparse_moe.experts.0", "feed_forward.experts.0", "mixer.experts.0")
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mixer.shared_experts")
_RECURRENT = ("mixer", "mamba", "linear_attn", "self_attn")


def _under(parents: tuple[str, ...], leaves: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{leaf}" for parent in parents for leaf in leaves.split())


_GATE, _UP, _DOWN = (
    "gate_proj w1",
    "up_proj w3 fc1 c_fc fc_in dense_h_to_4h",
    "down_proj w2 fc2 c_proj fc_out dense_4h_to_h",
)

#: operator -> names its matrix has below `layers.N` in one family or another.
MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": _under(_ATTENTION, "q_proj"),
    "k_proj": _under(_ATTENTION, "k_proj"),
    "v_proj": _under(_ATTENTION, "v_proj"),
    "qkv_proj": _under(_ATTENTION, "qkv_proj query_key_value wqkv Wqkv W_pack c_attn"),
    "o_proj": _under(_ATTENTION, "o_proj out_proj dense wo c_proj"),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj",),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "gate_proj": _under(_FEED_FORWARD, _GATE),
    "up_proj": _under(_FEED_FORWARD, _UP),
    "down_proj": _under(_FEED_FORWARD, _DOWN),
    "gate_up_proj": _under(_FEED_FORWARD, "gate_up_proj"),
    "expert_gate_proj": _under(_EXPERTS, _GATE),
    "expert_up_proj": _under(_EXPERTS, _UP),
    "expert_down_proj": _under(_EXPERTS, _DOWN),
    "expert_gate_up_proj": _under(_EXPERTS, "gate_up_proj"),
    "shared_gate_proj": _under(_SHARED, _GATE),
    "shared_up_proj": _under(_SHARED, _UP),
    "shared_down_proj": _under(_SHARED, _DOWN),
    "shared_gate_up_proj": _under(_SHARED, "gate_up_proj"),
}


def names_of(operator: str) -> tuple[str, ...]:
    """What the matrix of `operator` may be called below `layers.N`; `lm_head` stands outside."""
    return MODULES.get(operator) or _under(_RECURRENT, operator)
