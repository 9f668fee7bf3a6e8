"""Gemma 4: heads of two sizes, KV caches shared between layers, per-layer inputs, experts parallel to a dense MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, QkNorm, Values
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Norms
from llmviewer.layers.dense_and_sparse import DenseAndSparse
from llmviewer.layers.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.dense import sizes
from llmviewer.models.fields import group_count, hidden_size, layer_count, rotary_dim_by_type, sliding_or_full, window
from llmviewer.models.gemma import gemma_model
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation

#: Class defaults.
DEFAULTS = {
    **sizes(2304, 9216, 30, 8, 262144, 131072),
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "num_kv_shared_layers": 0,
    "sliding_window": 512,
    "tie_word_embeddings": True,
}
#: Class defaults of the unified form, where they differ.
UNIFIED_DEFAULTS = {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
#: Fields of `per_layer_config` -> names of earlier configs, which state them once for all full layers.
FULL_LAYER_FIELDS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
#: Default share of a head that is rotated in layers with full attention.
FULL_ROTARY_FACTOR = 0.25


def parse_gemma4_unified(config: Config, dtype: Dtype) -> Model:
    """Gemma4UnifiedForCausalLM: Gemma 4 without inputs per layer."""
    config.defaults(**UNIFIED_DEFAULTS)
    return parse_gemma4(config, dtype)


def parse_gemma4(config: Config, dtype: Dtype) -> Model:
    """Gemma4ForCausalLM: sliding and full layers; the last layers may use keys and values of earlier ones."""
    config.defaults(**{**DEFAULTS, **_full_layer_fields(config)})
    config.expect("use_bidirectional_attention", "vision")  # for image tokens only; text is causal
    config.ignore("num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_global_key_value_heads")
    config.defaults(num_experts_per_tok=config.get("top_k_experts"))
    types = [*sliding_or_full(config, 6)[:-1], "full"]  # the class makes the last layer a full one
    _check_full_layers(config, types)
    first_shared = len(types) - config.count("num_kv_shared_layers", minimum=0, maximum=len(types) - 1)
    kinds = [(word, "shared" if layer >= first_shared else "own") for layer, word in enumerate(types)]

    def layer(kind: tuple[str, str], repeats: int) -> DecoderLayer:
        shared = kind[1] == "shared"
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            norms=_norms(config, dtype),
            mixer=replace(_attention(config, dtype, kind[0]), shares_cache=shared),
            feed_forward=_feed_forward(config, dtype, kind[1]),
            tail=_tail(config, dtype),
        )

    model = gemma_model(config, dtype, parts.group_layers(kinds, layer))
    return replace(model, embedding=replace(model.embedding, per_layer=_per_layer_embedding(config, dtype)))


def _full_layer_fields(config: Config) -> dict[str, Any]:
    """Fields of full layers in `per_layer_config` (transformers 5), under the names of earlier configs.

    Raises UserError unless it has the same fields for every layer that it lists.
    """
    if not config.has("per_layer_config"):
        return {}
    stated = config.section("per_layer_config")
    layers = [stated.section(name).fields for name in stated.fields]
    if any(fields != layers[0] or not set(fields) <= set(FULL_LAYER_FIELDS) for fields in layers):
        names = " and ".join(FULL_LAYER_FIELDS)
        raise UserError(f"{config.where}: per_layer_config may state only {names}, alike for all full layers")
    for section in stated.sections.values():
        section.ignore(*FULL_LAYER_FIELDS)
    return {FULL_LAYER_FIELDS[name]: value for name, value in (layers[0] if layers else {}).items()}


def _check_full_layers(config: Config, types: Sequence[str]) -> None:
    """Raise UserError unless `per_layer_config`, if there is one, lists the full layers and no others."""
    listed = {int(name) for name in config.get("per_layer_config", {}) if name.isdecimal()}
    if listed and listed != {layer for layer, word in enumerate(types) if word == "full"}:
        raise UserError(f"{config.where}: per_layer_config must list the layers with full attention and no others")


def _attention(config: Config, dtype: Dtype, layer_type: str) -> Attention:
    """Full layers have wider heads; some models have fewer key-value heads and no v_proj in them."""
    base = replace(
        parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.PER_HEAD, values=Values.NORMED
    )
    if layer_type == "sliding":
        return replace(
            base, window=window(config), rotary_dim=rotary_dim_by_type(config, layer_type, base.head_dim, 1.0)
        )
    head_dim = config.count("global_head_dim")
    rotary_dim = rotary_dim_by_type(config, layer_type, head_dim, FULL_ROTARY_FACTOR)
    full = replace(base, head_dim=head_dim, rotary_dim=rotary_dim)
    keys_are_values = config.flag("attention_k_eq_v", default=False)
    if keys_are_values or config.has("per_layer_config"):
        kv_heads = group_count(config, "num_global_key_value_heads", base.kv_heads, heads=base.heads)
        full = replace(full, kv_heads=kv_heads)
    return replace(full, values=Values.KEYS) if keys_are_values else full


def _norms(config: Config, dtype: Dtype) -> Norms:
    """Norms around the branches; with experts, DenseAndSparse has its own norms before each part."""
    norms = parts.sandwich_norms(config, dtype)
    return replace(norms, mlp=None) if config.flag("enable_moe_block", default=False) else norms


def _feed_forward(config: Config, dtype: Dtype, cache: str) -> FeedForward:
    double_wide = config.flag("use_double_wide_mlp", default=False)
    width = config.count("intermediate_size") * (2 if double_wide and cache == "shared" else 1)
    dense = parts.mlp(config, dtype, width)
    if not config.flag("enable_moe_block", default=False):
        return dense
    experts = replace(parts.moe(config, dtype, config.count("moe_intermediate_size")), expert_scale=True)
    return DenseAndSparse(dense=dense, sparse=experts, dtype=dtype)


def _per_layer_width(config: Config) -> int:
    return config.count("hidden_size_per_layer_input", minimum=0)


def _per_layer_embedding(config: Config, dtype: Dtype) -> PerLayerEmbedding | None:
    vocabulary, width = config.count("vocab_size_per_layer_input"), _per_layer_width(config)
    hidden, layers = hidden_size(config), layer_count(config)
    if not width:
        return None
    return PerLayerEmbedding(vocabulary=vocabulary, layers=layers, width=width, hidden=hidden, dtype=dtype)


def _tail(config: Config, dtype: Dtype) -> PerLayerInput:
    return PerLayerInput(
        layers=layer_count(config),
        width=_per_layer_width(config),
        hidden=hidden_size(config),
        activation=activation(config.text("hidden_activation")),
        dtype=dtype,
    )
