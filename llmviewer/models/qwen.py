"""Qwen1.5, 2, 2.5 and 3, dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import layer_count
from llmviewer.ops.norm import rms_norm


def parse_qwen2(config: Config, dtype: Dtype) -> Model:
    """Qwen2ForCausalLM (Qwen1.5, 2, 2.5): Llama's layer with biases on queries, keys and values."""
    config.expect("use_mrope", False)
    attention = parts.attention(config, dtype, Projections(qkv_bias=True))
    return _model(config, dtype, attention, _late_windows(config), _all_dense(config))


def parse_qwen3(config: Config, dtype: Dtype) -> Model:
    """Qwen3ForCausalLM: QK-norm per head, biases only if `attention_bias`."""
    return _model(config, dtype, _qwen3_attention(config, dtype), _late_windows(config), _all_dense(config))


def parse_qwen2_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen2MoeForCausalLM: routed experts and one shared expert behind a sigmoid gate."""
    config.expect("use_sliding_window", False)  # the published code and the library's differ in which layers slide
    config.ignore("sliding_window", "max_window_layers")
    config.defaults(shared_expert_intermediate_size=5632)
    attention = parts.attention(config, dtype, Projections(qkv_bias=config.flag("qkv_bias", default=True)))
    types = parts.layer_types(config, ("full",), ["full"] * layer_count(config))
    return _model(config, dtype, attention, types, sparse_layers(config))


def parse_qwen3_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen3MoeForCausalLM: no shared expert; a window, where in use, holds in every layer."""
    config.expect("shared_expert_intermediate_size", 0)
    config.ignore("max_window_layers")
    types = ["sliding" if _window(config) < np.inf else "full"] * layer_count(config)
    return _model(config, dtype, _qwen3_attention(config, dtype), types, sparse_layers(config))


def _qwen3_attention(config: Config, dtype: Dtype) -> Attention:
    config.defaults(head_dim=128)
    config.expect("qkv_bias", False)
    config.expect("use_qk_norm", True)
    return replace(parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.PER_HEAD)


def _window(config: Config) -> float:
    """Tokens of the sliding window; `sliding_window` counts only where `use_sliding_window` is set."""
    config.ignore("sliding_window")
    return float(config.count("sliding_window")) if config.flag("use_sliding_window", default=False) else np.inf


def _late_windows(config: Config) -> list[str]:
    """Where windows are in use the first `max_window_layers` layers still see everything."""
    first, slides = config.count("max_window_layers", 28, least=0), _window(config) < np.inf
    rule = ["sliding" if slides and layer >= first else "full" for layer in range(layer_count(config))]
    return parts.layer_types(config, ("full", "sliding"), rule)


def _all_dense(config: Config) -> list[str]:
    return ["dense"] * layer_count(config)


def sparse_layers(config: Config) -> list[str]:
    """`moe` in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not list, else `dense`."""
    step, listed = config.count("decoder_sparse_step", 1), config.numbers("mlp_only_layers")
    return ["dense" if layer in listed or (layer + 1) % step else "moe" for layer in range(layer_count(config))]


def feed_forwards(config: Config, dtype: Dtype, words: Sequence[str]) -> dict[str, FeedForward]:
    """What `dense` and `moe` stand for, where they occur."""
    config.ignore("intermediate_size")  # of dense layers, where there are any
    build = {"dense": _dense, "moe": _experts}
    return {word: build[word](config, dtype) for word in set(words)}


def _dense(config: Config, dtype: Dtype) -> FeedForward:
    return parts.mlp(config, dtype, config.count("intermediate_size"))


def _experts(config: Config, dtype: Dtype) -> FeedForward:
    """Routed experts; a shared one behind a gate where the config gives it a size."""
    routed = parts.moe(config, dtype, config.count("moe_intermediate_size"))
    width = config.count("shared_expert_intermediate_size", 0, least=0)
    return replace(routed, shared=parts.mlp(config, dtype, width), shared_gate=True) if width else routed


def _model(config: Config, dtype: Dtype, attention: Attention, types: Sequence[str], ffn: Sequence[str]) -> Model:
    mixers = {"full": attention, "sliding": replace(attention, window=_window(config))}
    kinds = list(zip(types, ffn, strict=True))
    layers = parts.by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards(config, dtype, ffn))
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))
