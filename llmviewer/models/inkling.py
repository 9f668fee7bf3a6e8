"""Inkling: windows in five of six layers, convolutions around every part, experts (only the language model)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.attention_variants import AddedConv, ConvolvedAttention, ConvolvedPart
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.experts import DenseFirst, Experts

#: Name in `layer_types` -> ours.
TYPES = {"hybrid": "full", "hybrid_sliding": "sliding"}


def _types(config: Config) -> list[str]:
    """The layers as `layer_types` or `local_layer_ids` list them, else `full` in every sixth."""
    depth = layer_count(config)
    if config.has("layer_types"):
        return [TYPES[word] for word in config.words("layer_types", TYPES, depth)]
    near = config.numbers("local_layer_ids", [at for at in range(depth) if (at + 1) % 6])
    return ["sliding" if at in near else "full" for at in range(depth)]


def _attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Attention without rope; every score has a bias by distance."""
    full = Decoder(qk_norm=QkNorm.PER_HEAD, head_dim=128).attention(config, dtype)
    full = replace(full, rotary_dim=0, alibi=True)
    heads, window = config.count("swa_num_attention_heads", full.heads), config.count("sliding_window_size", 512)
    sliding = replace(
        full,
        heads=heads,
        kv_heads=group_count(config, "swa_num_key_value_heads", full.kv_heads, heads=heads),
        head_dim=config.count("swa_head_dim", full.head_dim),
        window=window,
    )
    extent = config.count("rel_extent", 1024)
    return {"full": _convolved(config, full, extent), "sliding": _convolved(config, sliding, window)}


def _convolved(config: Config, attention: Attention, extent: int) -> ConvolvedAttention:
    return ConvolvedAttention(
        attention=attention, d_rel=config.count("d_rel", 16), extent=extent, kernel=config.count("conv_kernel_size", 4)
    )


def _after(config: Config, dtype: Dtype, part: FeedForward) -> ConvolvedPart:
    kernel = config.count("conv_kernel_size", 4)
    return ConvolvedPart(
        part=part, conv=AddedConv(name="mlp_conv", channels=hidden_size(config), kernel=kernel, dtype=dtype)
    )


def _experts(config: Config, dtype: Dtype) -> ConvolvedPart:
    """Experts; the router also scores the shared ones, which every token uses."""
    plain = Experts(correction_bias=True)(config, dtype)
    return _after(config, dtype, replace(plain, scored=config.count("n_shared_experts", 0, minimum=0)))


inkling_text = Decoder(
    mixers=_attention,
    types=_types,
    experts=_experts,
    placement=DenseFirst("dense_mlp_idx", 0),
    dense=lambda config, dtype: _after(config, dtype, parts.mlp(config, dtype, config.count("intermediate_size"))),
    constants={"shared_expert_sink": True, "dense_intermediate_size": None},
    ignored="log_scaling_alpha log_scaling_n_floor logits_mup_width_multiplier route_scale unpadded_vocab_size "
    "rms_norm_eps_moe_gate chain_hidden_post_norm mtp_hidden_states_first mtp_local_layer_ids "
    "number_of_conv_states local_layer_ids",
    embedding_norm=True,
)  # fmt: skip
