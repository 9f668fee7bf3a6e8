"""Llama 4 Scout and Maverick, the language model."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer, FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size, layer_count
from llmviewer.ops.norm import rms_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """Llama4ForCausalLM: chunked attention with rope, every fourth layer full and without; experts in some or all."""
    types = ["chunked" if rope else "full" for rope in parts.rotated_layers(config)]
    config.expect("layer_types", [f"{word}_attention" for word in types])
    kinds = list(zip(types, _feed_forwards(config), strict=True))
    mixers = _attention(config, dtype)

    def layer(kind: tuple[str, str], times: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=times,
            norms=parts.pre_norms(config, dtype),
            mixer=mixers[kind[0]],
            feed_forward=_feed_forward(config, dtype, kind[1]),
        )

    norm = rms_norm("final_norm", hidden_size(config), dtype)
    return parts.model(config, dtype, parts.grouped(kinds, layer), norm)


def _attention(config: Config, dtype: Dtype) -> dict[str, Attention]:
    """Both kinds; QK-norm has no weights and stands in rotated layers alone."""
    # a factor on the queries of long contexts, and a choice of the quantizer's
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
    """A dense SwiGLU; or experts, whose gate and up are one matrix, beside a shared one of the same size."""
    if word == "dense":
        return parts.mlp(config, dtype, config.count("intermediate_size_mlp"))
    config.ignore("intermediate_size_mlp")  # of dense layers, where there are any
    routed = parts.moe(config, dtype, config.count("intermediate_size"))
    return replace(routed, expert=replace(routed.expert, fused=True), shared=routed.expert)
