"""Qwen1.5, 2, 2.5 and 3, dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Part
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm

#: Head size of Qwen3's config class where a config is silent.
QWEN3_HEAD_DIM = 128


def parse_qwen2(config: Config, dtype: Dtype) -> Model:
    """Qwen2ForCausalLM (Qwen1.5, 2, 2.5): Llama's layer with biases on queries, keys and values."""
    config.expect("use_mrope", False)
    attention = parts.attention(config, dtype, Projections(qkv_bias=True))
    return _model(config, dtype, attention, _late_windows(config), _dense(config))


def parse_qwen3(config: Config, dtype: Dtype) -> Model:
    """Qwen3ForCausalLM: QK-norm per head, biases only if `attention_bias`."""
    return _model(config, dtype, _qwen3_attention(config, dtype), _late_windows(config), _dense(config))


def parse_qwen2_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen2MoeForCausalLM: routed experts and one shared expert behind a sigmoid gate."""
    config.expect("use_sliding_window", False)  # the published code and the library's differ in which layers slide
    config.ignore("sliding_window", "max_window_layers")
    bias = config.flag("qkv_bias", default=True)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias))
    full = ["full"] * config.count("num_hidden_layers")
    types = parts.layer_types(config, ("full",), full)
    return _model(config, dtype, attention, types, sparse_layers(config))


def parse_qwen3_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen3MoeForCausalLM: no shared expert; a window, where in use, holds in every layer."""
    config.ignore("max_window_layers")
    everywhere = "sliding" if _window(config) < np.inf else "full"
    types = [everywhere] * config.count("num_hidden_layers")
    return _model(config, dtype, _qwen3_attention(config, dtype), types, sparse_layers(config))


def _qwen3_attention(config: Config, dtype: Dtype) -> Attention:
    bias = config.flag("attention_bias", default=False)
    projections = Projections(qkv_bias=bias, out_bias=bias)
    attention = parts.attention(config, dtype, projections, head_dim=QWEN3_HEAD_DIM)
    return replace(attention, qk_norm=QkNorm.PER_HEAD)


def _window(config: Config) -> float:
    """Tokens of the sliding window; `sliding_window` counts only where `use_sliding_window` is set."""
    config.ignore("sliding_window")
    return float(config.count("sliding_window")) if config.flag("use_sliding_window", default=False) else np.inf


def _late_windows(config: Config) -> list[str]:
    """Where windows are in use the first `max_window_layers` layers still see everything."""
    layers, first = config.count("num_hidden_layers"), config.count("max_window_layers", 28, least=0)
    slides = _window(config) < np.inf
    rule = ["sliding" if slides and layer >= first else "full" for layer in range(layers)]
    return parts.layer_types(config, ("full", "sliding"), rule)


def _dense(config: Config) -> list[str]:
    return ["dense"] * config.count("num_hidden_layers")


def sparse_layers(config: Config) -> list[str]:
    """`moe` in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not list, else `dense`."""
    step, listed = config.count("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    layers = range(config.count("num_hidden_layers"))
    return ["dense" if layer in listed or (layer + 1) % step else "moe" for layer in layers]


def feed_forward(config: Config, dtype: Dtype, word: str) -> Part:
    """A dense SwiGLU, or experts; a shared expert where the config gives it a size."""
    if word == "dense":
        return parts.mlp(config, dtype, config.count("intermediate_size"))
    config.ignore("intermediate_size")  # of dense layers, where there are any
    routed = parts.moe(config, dtype, config.count("moe_intermediate_size"))
    if not config.has("shared_expert_intermediate_size"):
        return routed
    shared = parts.mlp(config, dtype, config.count("shared_expert_intermediate_size"))
    return replace(routed, shared=shared, shared_gate=True)


def _model(config: Config, dtype: Dtype, attention: Attention, types: Sequence[str], ffn: Sequence[str]) -> Model:
    kinds = list(zip(types, ffn, strict=True))

    def layer(kind: tuple[str, str], times: int) -> DecoderLayer:
        window = _window(config) if kind[0] == "sliding" else np.inf
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            times=times,
            norms=parts.pre_norms(config, dtype),
            mixer=replace(attention, window=window),
            feed_forward=feed_forward(config, dtype, kind[1]),
        )

    norm = rms_norm("final_norm", attention.hidden, dtype)
    return parts.model(config, dtype, parts.grouped(kinds, layer), norm)
