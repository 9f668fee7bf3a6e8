"""GGUF headers of Mamba and of models with Mamba layers: the fields of their config.json."""

from __future__ import annotations

from typing import Any

from llmviewer.models.gguf_source import DROPPED, Source

#: Fields of all architectures that a model without attention and MLP does not have.
_NEITHER = dict.fromkeys(
    ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"), DROPPED
)


def mamba(source: Source) -> dict[str, Any]:
    """Mamba: no attention and no MLP."""
    names = {"conv_kernel": "ssm.conv_kernel", "intermediate_size": "ssm.inner_size", "state_size": "ssm.state_size"}
    return {"model_type": "mamba", **_NEITHER, **source.renamed({**names, "time_step_rank": "ssm.time_step_rank"})}


def mamba2(source: Source) -> dict[str, Any]:
    """Mamba 2: the header calls its heads time steps."""
    inner, heads = source.get("ssm.inner_size"), source.get("ssm.time_step_rank")
    names = {"conv_kernel": "ssm.conv_kernel", "state_size": "ssm.state_size", "n_groups": "ssm.group_count"}
    width = {"head_dim": inner // heads, "intermediate_size": inner} if inner and heads else {}
    return {"model_type": "mamba2", **_NEITHER, "num_heads": heads, **width, **source.renamed(names)}


def _mixer(source: Source) -> dict[str, Any]:
    """Fields of Mamba 2 in a model that has other layers too."""
    inner, heads = source.get("ssm.inner_size"), source.get("ssm.time_step_rank")
    names = {"mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size", "mamba_n_groups": "ssm.group_count"}
    width = {"mamba_d_head": inner // heads} if inner and heads else {}
    return {**source.renamed(names), "mamba_n_heads": heads, **width}


def falcon_h1(source: Source) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    norm = {"mamba_rms_norm": True} if source.has("ssm_norm.weight") else {}
    return {"model_type": "falcon_h1", **_mixer(source), "mamba_d_ssm": source.get("ssm.inner_size"), **norm}


def granite_hybrid(source: Source) -> dict[str, Any]:
    """Granite 4: layers without KV heads are Mamba 2; the shared expert is the MLP where there are no others."""
    heads = source.listed("attention.head_count_kv")
    width = source.get("expert_shared_feed_forward_length") or source.get("feed_forward_length")
    experts = source.renamed({"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"})
    inner, hidden = source.get("ssm.inner_size"), source.get("embedding_length")
    return {
        "model_type": "granitemoehybrid",
        **{"num_local_experts": 0, "num_experts_per_tok": 0, **experts},
        **_mixer(source),
        **({"mamba_expand": inner // hidden} if inner and hidden else {}),
        "shared_intermediate_size": width,
        "num_key_value_heads": max(heads, default=0),
        "layer_types": ["attention" if count else "mamba" for count in heads],
        "position_embedding_type": "nope",
    }


def nemotron_h(source: Source) -> dict[str, Any]:
    """Nemotron-H: a layer is attention, an MLP or Mamba 2, by which of its widths is not zero."""
    heads, widths = source.listed("attention.head_count_kv"), source.listed("feed_forward_length")
    kinds = ["*" if count else "-" if width else "M" for count, width in zip(heads, widths, strict=True)]
    inner, steps = source.get("ssm.inner_size"), source.get("ssm.time_step_rank")
    names = {"conv_kernel": "ssm.conv_kernel", "ssm_state_size": "ssm.state_size", "n_groups": "ssm.group_count"}
    return {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "".join(kinds),
        "num_key_value_heads": max(heads, default=0),
        "intermediate_size": max(widths, default=0),
        "mamba_num_heads": steps,
        **({"mamba_head_dim": inner // steps} if inner and steps else {}),
        **source.renamed(names),
    }
