"""Names of linear layers in checkpoints, by operator."""

from __future__ import annotations

_ATTENTION = ("self_attn", "attention", "self_attention", "attn", "mixer", "norm_attn_norm.attn")
_FEED_FORWARD = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "mixer")
_EXPERTS = tuple(f"{parent}.experts{middle}" for parent in _FEED_FORWARD for middle in (".0", "", ".mlp"))
_SHARED = tuple(f"{parent}.shared_expert{ending}" for parent in _FEED_FORWARD for ending in ("s", ""))
_MAMBA = ("mixer", "mamba")
_GATE = ("gate_proj", "w1")
_UP = ("up_proj", "w3", "v1", "fc1", "c_fc", "fc_in", "dense_h_to_4h")
_DOWN = ("down_proj", "w2", "fc2", "c_proj", "fc_out", "dense_4h_to_h")


def _under(parents: tuple[str, ...], *leaves: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{leaf}" for parent in parents for leaf in leaves)


#: operator -> names its matrix has below `layers.N` in one family or another.
MODULES: dict[str, tuple[str, ...]] = {
    "q_proj": _under(_ATTENTION, "q_proj"),
    "k_proj": _under(_ATTENTION, "k_proj"),
    "v_proj": _under(_ATTENTION, "v_proj"),
    "qkv_proj": _under(_ATTENTION, "qkv_proj", "query_key_value", "wqkv", "Wqkv", "W_pack", "c_attn"),
    "o_proj": _under(_ATTENTION, "o_proj", "out_proj", "dense", "wo", "c_proj"),
    "q_a_proj": ("self_attn.q_a_proj",),
    "q_b_proj": ("self_attn.q_b_proj",),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "gate_proj": _under(_FEED_FORWARD, *_GATE),
    "up_proj": (*_under(_FEED_FORWARD, *_UP), "fc1"),
    "down_proj": (*_under(_FEED_FORWARD, *_DOWN), "fc2"),
    "gate_up_proj": _under(_FEED_FORWARD, "gate_up_proj"),
    "expert_gate_proj": _under(_EXPERTS, *_GATE),
    "expert_up_proj": _under(_EXPERTS, *_UP),
    "expert_down_proj": _under(_EXPERTS, *_DOWN),
    "expert_gate_up_proj": _under(_EXPERTS, "gate_up_proj"),
    "shared_gate_proj": _under(_SHARED, *_GATE),
    "shared_up_proj": _under(_SHARED, *_UP),
    "shared_down_proj": _under(_SHARED, *_DOWN),
    "shared_gate_up_proj": _under(_SHARED, "gate_up_proj"),
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
    """What the matrix of `operator` may be called below `layers.N`; `lm_head` stands outside."""
    return MODULES.get(operator, (operator,))
