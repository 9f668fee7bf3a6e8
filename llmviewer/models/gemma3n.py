"""Gemma 3n: several residual streams, inputs per layer, shared KV caches, sparse activations in some layers."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.altup import Correct, LaurelAttention, Merge, Predict, Spread, Streams
from llmviewer.layers.attention import QkNorm, Values
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.per_layer_inputs import PerLayerEmbedding, PerLayerInput
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.dense import sizes
from llmviewer.models.fields import hidden_size, layer_count, sliding_or_full, window
from llmviewer.models.gemma import gemma_model
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Activation, activation

#: Class defaults.
DEFAULTS = {
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
    config.defaults(**DEFAULTS)
    config.expect("altup_correct_scale", True)
    config.expect("altup_active_idx", 0)
    config.ignore("altup_coef_clip")  # training only
    types = sliding_or_full(config, 5)
    first_shared = len(types) - config.count("num_kv_shared_layers", minimum=0, maximum=len(types) - 1)
    caches = ["shared" if layer >= first_shared else "own" for layer in range(len(types))]
    kinds = list(zip(types, caches, _sparsity(config), map(str, _widths(config)), strict=True))
    streams = Streams(count=config.count("altup_num_inputs"), hidden=hidden_size(config), dtype=dtype)
    end = Correct(streams=streams, inputs=_per_layer_input(config, dtype))
    norms = replace(parts.sandwich_norms(config, dtype), attn_post=None)  # part of LaurelAttention

    def layer(kind: tuple[str, str, str, str], repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            lead=Predict(streams=streams),
            norms=norms,
            mixer=_attention(config, dtype, kind[0], shared=kind[1] == "shared"),
            feed_forward=_mlp(config, dtype, kind),
            tail=end,
        )

    return _with_streams(config, gemma_model(config, dtype, parts.group_layers(kinds, layer)), streams)


def _attention(config: Config, dtype: Dtype, layer_type: str, *, shared: bool) -> LaurelAttention:
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


def _per_layer_input(config: Config, dtype: Dtype) -> PerLayerInput:
    return PerLayerInput(
        layers=layer_count(config),
        width=config.count("hidden_size_per_layer_input"),
        hidden=hidden_size(config),
        activation=activation(config.text("hidden_activation")),
        dtype=dtype,
    )


def _with_streams(config: Config, plain: Model, streams: Streams) -> Model:
    """The model with its streams made after the embedding and merged before the head."""
    inputs = PerLayerEmbedding(
        vocabulary=config.count("vocab_size_per_layer_input"),
        layers=layer_count(config),
        width=config.count("hidden_size_per_layer_input"),
        hidden=streams.hidden,
        dtype=streams.dtype,
    )
    return replace(
        plain,
        embedding=replace(plain.embedding, per_layer=Spread(streams=streams, inputs=inputs)),
        head=replace(plain.head, merge=Merge(streams=streams)),
    )
