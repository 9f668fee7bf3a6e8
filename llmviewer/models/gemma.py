"""Gemma 1, 2 and 3; Gemma 3n (streams, inputs per layer); Gemma 4 (two head sizes, shared caches)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.altup import Correct, LaurelAttention, Merge, Predict, Spread, Streams
from llmviewer.layers.attention import Attention, QkNorm, Values
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Norms
from llmviewer.layers.feed_forward import DenseAndSparse, Mlp
from llmviewer.layers.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from llmviewer.models import parts
from llmviewer.models.config import (
    Config,
    group_count,
    hidden_size,
    layer_count,
    rotary_dim_by_type,
    sliding_or_full,
    window,
)
from llmviewer.models.decoder import AROUND, Decoder, sizes
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Activation, activation, rms_norm

#: Class defaults of all three (`hidden_act: gelu` of Gemma 1 also means the tanh form).
DEFAULTS = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}

#: Class defaults of Gemma 3; the published config of the 4B states little more than width and depth.
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


#: GemmaForCausalLM: Llama with GeGLU, wide heads, scaled embeddings, tied head.
GEMMA = Decoder(
    defaults=DEFAULTS,
    constants={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
    scaled=True,
    caps=True,
)
#: Gemma2ForCausalLM: a window in every other layer; norms around each branch; soft caps on scores and logits.
GEMMA2 = replace(
    GEMMA,
    defaults={
        **DEFAULTS,
        **{"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    constants={"use_bidirectional_attention": False},
    places=AROUND,
    types=partial(sliding_or_full, period=2),
)
#: Gemma3ForCausalLM: five sliding layers, then a full one; norms around each branch; QK-norm per head.
GEMMA3 = replace(
    GEMMA2,
    defaults={**DEFAULTS, **GEMMA3_DEFAULTS},
    qk_norm=QkNorm.PER_HEAD,
    types=partial(sliding_or_full, period=6),
)


def gemma_model(config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...]) -> Model:
    """The model around `layers`: scaled embeddings, and a soft cap on the logits if the config has one."""
    plain = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    capped = config.has("final_logit_softcapping")
    return parts.with_logit_cap(replace(plain, embedding=replace(plain.embedding, scaled=True)), capped=capped)


#: Class defaults of Gemma 3n.
DEFAULTS_3N = {
    **sizes(2048, 16384, 35, 8, 262400, 32768),
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "num_kv_shared_layers": 15,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
    "tie_word_embeddings": True,
}
#: Layers with sparse activations by default, in a model of more layers than these.
SPARSE_LAYERS = 10
#: Per element of a sparse activation: mean, variance (3), cutoff and a maximum.
SPARSITY_FLOPS = 6.0


def parse_gemma3n(config: Config, dtype: Dtype) -> Model:
    """Gemma3nForCausalLM; a sparse activation zeroes most of an MLP's elements, but its matrices stay dense."""
    config.defaults(**DEFAULTS_3N)
    config.expect("altup_correct_scale", True)
    config.expect("altup_active_idx", 0)
    config.count("hidden_size_per_layer_input")  # never 0, as in Gemma 4
    config.ignore("altup_coef_clip")  # training only
    types = sliding_or_full(config, 5)
    first_shared = len(types) - config.count("num_kv_shared_layers", minimum=0, maximum=len(types) - 1)
    caches = ["shared" if layer >= first_shared else "own" for layer in range(len(types))]
    kinds = list(zip(types, caches, _sparsity(config), map(str, _widths(config)), strict=True))
    streams = Streams(count=config.count("altup_num_inputs"), hidden=hidden_size(config), dtype=dtype)
    end = Correct(streams=streams, inputs=_tail(config, dtype))
    norms = replace(parts.sandwich_norms(config, dtype), attn_post=None)  # part of LaurelAttention

    def layer(kind: tuple[str, str, str, str], repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            lead=Predict(streams=streams),
            norms=norms,
            mixer=_attention_3n(config, dtype, kind[0], shared=kind[1] == "shared"),
            feed_forward=_mlp(config, dtype, kind),
            tail=end,
        )

    return _with_streams(config, gemma_model(config, dtype, parts.group_layers(kinds, layer)), streams)


def _attention_3n(config: Config, dtype: Dtype, layer_type: str, *, shared: bool) -> LaurelAttention:
    attention = replace(
        parts.attention(config, dtype, parts.projections(config)),
        qk_norm=QkNorm.PER_HEAD,
        values=Values.NORMED,
        shares_cache=shared,
    )
    if layer_type == "sliding":
        attention = replace(attention, window=window(config))
    return LaurelAttention(attention=attention, rank=config.count("laurel_rank"))


def _widths(config: Config) -> list[int]:
    """The MLP's width in every layer; `intermediate_size` is one number or a list."""
    if not isinstance(config.get("intermediate_size"), list):
        return [config.count("intermediate_size")] * layer_count(config)
    widths = config.numbers("intermediate_size")
    if len(widths) != layer_count(config) or min(widths) < 1:
        raise UserError(f"{config.where}: field 'intermediate_size' must list {layer_count(config)} widths")
    return widths


def _sparsity(config: Config) -> list[str]:
    """`sparse` for layers whose entry of `activation_sparsity_pattern` is not 0, else `dense`."""
    depth = layer_count(config)
    default = [0.95 * (layer < SPARSE_LAYERS < depth) for layer in range(depth)]
    pattern = config.get("activation_sparsity_pattern", default)
    if not isinstance(pattern, list):
        pattern = [pattern] * depth
    if len(pattern) != depth:
        raise UserError(f"{config.where}: field 'activation_sparsity_pattern' must list {depth} layers")
    return ["sparse" if share else "dense" for share in pattern]


def _mlp(config: Config, dtype: Dtype, kind: tuple[str, str, str, str]) -> Mlp:
    mlp = parts.mlp(config, dtype, int(kind[3]))
    if kind[2] == "dense":
        return mlp
    return replace(mlp, activation=Activation(mlp.activation.flops + SPARSITY_FLOPS, mlp.activation.special))


def _with_streams(config: Config, plain: Model, streams: Streams) -> Model:
    """The model with its streams made after the embedding and merged before the head."""
    inputs = _per_layer_embedding(config, streams.dtype)
    return replace(
        plain,
        embedding=replace(plain.embedding, per_layer=inputs and Spread(streams=streams, inputs=inputs)),
        head=replace(plain.head, merge=Merge(streams=streams)),
    )


#: Class defaults of Gemma 4.
DEFAULTS_4 = {
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
    config.defaults(**{**DEFAULTS_4, **_full_layer_fields(config)})
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
            mixer=replace(_attention_4(config, dtype, kind[0]), shares_cache=shared),
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


def _attention_4(config: Config, dtype: Dtype, layer_type: str) -> Attention:
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
