"""Dots 3: latent attention with an indexer in some layers, and with a window and other sizes in the rest; experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.feed_forward import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config, layer_count
from llmviewer.models.decoder import Decoder
from llmviewer.models.deepseek import indexer, latent_attention
from llmviewer.models.experts import DenseFirst, Experts

#: Sizes of layers with a window, and their defaults; a checkpoint names them `swa_...`.
WINDOW_SIZES = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def _types(config: Config) -> list[str]:
    """`indexed` for the first two layers and every fourth from the second, else `sliding`; or as listed."""
    depth = layer_count(config)
    if not config.has("layer_types"):
        return ["indexed" if at < 2 or at % 4 == 1 else "sliding" for at in range(depth)]
    words = config.words("layer_types", ("indexed_attention", "sliding_attention"), depth)
    return [word.removesuffix("_attention") for word in words]


def _window_sizes(config: Config) -> Mapping[str, Any]:
    """The sizes of layers with a window: of `per_layer_config`, which must be equal, or of `swa_...` fields."""
    listed = config.get("per_layer_config")
    if listed is None:
        return {name: config.count(f"swa_{name}", default) for name, default in WINDOW_SIZES.items()}
    sliding = [f"{at:02}" for at, name in enumerate(_types(config)) if name == "sliding"]
    sizes = [value for key, value in listed.items() if f"{int(key):02}" in sliding]
    if len(sizes) < len(sliding) or any(size != sizes[0] for size in sizes):
        raise UserError(f"{config.where}: field 'per_layer_config' must state the same sizes for every sliding layer")
    return sizes[0] if sizes else {}


def _attention(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """Both kinds, with a gate per head and a norm of the rotated key."""
    config.ignore("head_dim")  # of sliding layers; those with an indexer ignore it
    fields = {name: value for name, value in config.fields.items() if name != "head_dim"}
    sizes = {name: value for name, value in _window_sizes(config).items() if name != "head_dim"}
    full, near = (latent_attention(Config(both, config.where), dtype) for both in (fields, {**fields, **sizes}))
    config.ignore(*WINDOW_SIZES)
    common: dict[str, Any] = {"gate_width": 1, "key_norm": True}
    chosen = replace(full, selected=config.count("index_topk"), indexer=indexer(config, dtype), **common)
    return {"indexed": chosen, "sliding": replace(near, window=config.count("sliding_window", 512), **common)}


def _experts(config: Config, dtype: Dtype) -> Moe:
    """Experts, and shared ones of a width of their own."""
    plain = Experts(shared="", correction_bias=True)(config, dtype)
    width = config.count("shared_experts_intermediate_size", 1536) * config.count("n_shared_experts", 1)
    return replace(plain, shared=parts.mlp(config, dtype, width))


dots3_note = Decoder(
    mixers=_attention,
    types=_types,
    experts=_experts,
    placement=DenseFirst(default=1),
    constants={"mlp_bias": False, "use_dsa": True, "use_sliding_window": True, "attention_bias": False},
)
