"""Llama 4 Scout and Maverick (only the language model)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer, FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import hidden_size, layer_count, rope_layers
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm


def parse_llama4(config: Config, dtype: Dtype) -> Model:
    """Llama4ForCausalLM: chunked attention with rope, full attention without rope in every fourth layer; experts."""
    types = ["chunked" if rope else "full" for rope in rope_layers(config)]
    config.expect("layer_types", [f"{word}_attention" for word in types])
    kinds = list(zip(types, _feed_forwards(config), strict=True))
    mixers = _attention(config, dtype)

    def layer(kind: tuple[str, str], repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=repeats,
            norms=parts.pre_norms(config, dtype),
            mixer=mixers[kind[0]],
            feed_forward=_feed_forward(config, dtype, kind[1]),
        )

    norm = rms_norm("final_norm", hidden_size(config), dtype)
    return parts.model(config, dtype, parts.group_layers(kinds, layer), norm)


def _attention(config: Config, dtype: Dtype) -> dict[str, Attention]:
    """Attention by layer type; only layers with rope have QK-norm, which has no weights."""
    # a factor on queries at long contexts, and a setting of the quantizer
    config.ignore("attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    full = parts.attention(config, dtype, parts.projections(config), head_dim=128)
    norm = QkNorm.WEIGHTLESS if config.flag("use_qk_norm", default=True) else QkNorm.NONE
    chunked = replace(full, qk_norm=norm, chunk=config.count("attention_chunk_size", 8192))
    return {"chunked": chunked, "full": replace(full, rotary_dim=0)}


def _feed_forwards(config: Config) -> list[str]:
    """`moe` in the layers that `moe_layers` lists, or every `interleave_moe_layer_step`-th; else `dense`."""
    depth, step = layer_count(config), config.count("interleave_moe_layer_step", 1)
    listed = config.numbers("moe_layers", range(step - 1, depth, step))
    return ["moe" if layer in listed else "dense" for layer in range(depth)]


def _feed_forward(config: Config, dtype: Dtype, word: str) -> FeedForward:
    """A dense SwiGLU, or experts with fused gate and up and a shared expert of the same size."""
    if word == "dense":
        return parts.mlp(config, dtype, config.count("intermediate_size_mlp"))
    config.ignore("intermediate_size_mlp")  # unused if no layer is dense
    routed = parts.moe(config, dtype, config.count("intermediate_size"))
    return replace(routed, expert=replace(routed.expert, fused=True), shared=routed.expert)
