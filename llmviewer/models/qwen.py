"""Qwen1.5 to 3, dense and with experts; Qwen3-Next and 3.5 with the gated delta rule in three of four layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, layer_count, layer_types, rotary_dim
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import rms_norm


def parse_qwen2(config: Config, dtype: Dtype) -> Model:
    """Qwen2ForCausalLM (Qwen1.5, 2, 2.5): Llama with biases on q, k and v."""
    config.expect("use_mrope", False)
    config.expect("attention_bias", True)  # the class has the biases whatever a config says
    attention = parts.attention(config, dtype, Projections(qkv_bias=True))
    return _model(config, dtype, attention, _window_layers(config), _all_dense(config))


def parse_qwen3(config: Config, dtype: Dtype) -> Model:
    """Qwen3ForCausalLM: QK-norm per head, biases only if `attention_bias`."""
    config.defaults(head_dim=128)
    return _model(config, dtype, _qwen3_attention(config, dtype), _window_layers(config), _all_dense(config))


def parse_qwen2_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen2MoeForCausalLM: routed experts and one shared expert scaled by a sigmoid gate."""
    config.expect("use_sliding_window", False)  # published code and transformers disagree on which layers slide
    config.ignore("sliding_window", "max_window_layers")
    config.defaults(shared_expert_intermediate_size=5632)
    attention = parts.attention(config, dtype, Projections(qkv_bias=config.flag("qkv_bias", default=True)))
    types = layer_types(config, ("full",), ["full"] * layer_count(config))
    return _model(config, dtype, attention, types, sparse_layers(config))


def parse_qwen3_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen3MoeForCausalLM: no shared expert; if a window is used, all layers have it."""
    config.expect("shared_expert_intermediate_size", 0)
    config.ignore("max_window_layers")
    types = ["sliding" if _window(config) < np.inf else "full"] * layer_count(config)
    return _model(config, dtype, _qwen3_attention(config, dtype), types, sparse_layers(config))


def _qwen3_attention(config: Config, dtype: Dtype) -> Attention:
    config.expect("qkv_bias", False)
    config.expect("use_qk_norm", True)
    return replace(parts.attention(config, dtype, parts.projections(config)), qk_norm=QkNorm.PER_HEAD)


def _window(config: Config) -> float:
    """Sliding window [tokens]; inf unless `use_sliding_window` is set."""
    config.ignore("sliding_window")
    return float(config.count("sliding_window")) if config.flag("use_sliding_window", default=False) else np.inf


def _window_layers(config: Config) -> list[str]:
    """Type of every layer; with a window, the first `max_window_layers` layers still have full attention."""
    first, has_window = config.count("max_window_layers", 28, minimum=0), _window(config) < np.inf
    default = ["sliding" if has_window and layer >= first else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("full", "sliding"), default)


def _all_dense(config: Config) -> list[str]:
    return ["dense"] * layer_count(config)


def sparse_layers(config: Config) -> list[str]:
    """`moe` for every `decoder_sparse_step`-th layer unless `mlp_only_layers` lists it, else `dense`."""
    step, dense = config.count("decoder_sparse_step", 1), config.numbers("mlp_only_layers")
    return ["dense" if layer in dense or (layer + 1) % step else "moe" for layer in range(layer_count(config))]


def feed_forwards(config: Config, dtype: Dtype, words: Sequence[str]) -> dict[str, FeedForward]:
    """The feed-forward part for each of `words` (`dense`, `moe`)."""
    config.ignore("intermediate_size")  # unused if no layer is dense
    build = {"dense": _dense, "moe": _experts}
    return {word: build[word](config, dtype) for word in set(words)}


def _dense(config: Config, dtype: Dtype) -> FeedForward:
    return parts.mlp(config, dtype, config.count("intermediate_size"))


def _experts(config: Config, dtype: Dtype) -> FeedForward:
    """Routed experts, and a gated shared expert if the config gives it a size."""
    routed = parts.moe(config, dtype, config.count("moe_intermediate_size"))
    width = config.count("shared_expert_intermediate_size", 0, minimum=0)
    return replace(routed, shared=parts.mlp(config, dtype, width), shared_gate=True) if width else routed


def _model(config: Config, dtype: Dtype, attention: Attention, types: Sequence[str], ffn: Sequence[str]) -> Model:
    mixers = {"full": attention, "sliding": replace(attention, window=_window(config))}
    kinds = list(zip(types, ffn, strict=True))
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards(config, dtype, ffn))
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def parse_qwen3_next(config: Config, dtype: Dtype) -> Model:
    """Qwen3NextForCausalLM: the delta net's projections are fused in two matrices; experts."""
    config.expect("use_sliding_window", False)
    config.defaults(shared_expert_intermediate_size=512)
    return _next_model(config, dtype, _delta_net(config, dtype), sparse_layers(config))


def parse_qwen3_5(config: Config, dtype: Dtype) -> Model:
    """Qwen3_5ForCausalLM: separate projections of the delta net; dense MLPs."""
    config.expect("mlp_only_layers", [])
    return _qwen3_5(config, dtype, "dense")


def parse_qwen3_5_moe(config: Config, dtype: Dtype) -> Model:
    """Qwen3_5MoeForCausalLM: separate projections of the delta net; experts in every layer."""
    config.expect("mlp_only_layers", [])
    config.defaults(shared_expert_intermediate_size=512)
    return _qwen3_5(config, dtype, "moe")


def _qwen3_5(config: Config, dtype: Dtype, word: str) -> Model:
    delta_net = replace(_delta_net(config, dtype), fused=False)
    return _next_model(config, dtype, delta_net, [word] * layer_count(config))


def _delta_net(config: Config, dtype: Dtype) -> GatedDeltaNet:
    v_heads = config.count("linear_num_value_heads")
    return GatedDeltaNet(
        hidden=hidden_size(config),
        k_heads=group_count(config, "linear_num_key_heads", heads=v_heads),
        v_heads=v_heads,
        k_dim=config.count("linear_key_head_dim"),
        v_dim=config.count("linear_value_head_dim"),
        kernel=config.count("linear_conv_kernel_dim"),
        dtype=dtype,
        fused=True,
    )


def _attention(config: Config, dtype: Dtype) -> Attention:
    """A second query projection gates the output; a quarter of each head is rotated."""
    config.defaults(head_dim=256)
    config.expect("attn_output_gate", True)
    config.expect("output_gate_type", "swish", "silu")
    attention = parts.attention(config, dtype, parts.projections(config))
    rotated = rotary_dim(config, attention.head_dim, factor=0.25)
    return replace(attention, qk_norm=QkNorm.PER_HEAD, gate=True, rotary_dim=rotated)


def _types(config: Config) -> list[str]:
    """Type of every layer: `full` for every `full_attention_interval`-th, or as `layer_types` lists."""
    interval = config.count("full_attention_interval", 4)
    default = ["linear" if (layer + 1) % interval else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("linear", "full"), default)


def _next_model(config: Config, dtype: Dtype, delta_net: GatedDeltaNet, ffn: list[str]) -> Model:
    mixers: dict[str, Mixer] = {"linear": delta_net, "full": _attention(config, dtype)}
    kinds = list(zip(_types(config), ffn, strict=True))
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards(config, dtype, ffn))
    built = parts.model(config, dtype, layers, rms_norm("final_norm", delta_net.hidden, dtype))
    return parts.with_state_note(built, config, "mamba_ssm_dtype")
