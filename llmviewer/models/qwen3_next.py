"""Qwen3-Next and Qwen3.5: one layer of gated attention per three layers of the gated delta rule."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.gated_delta_net import GatedDeltaNet
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import group_count, hidden_size, layer_count, layer_types, rotary_dim
from llmviewer.models.model import Model
from llmviewer.models.qwen import feed_forwards, sparse_layers
from llmviewer.ops.norm import rms_norm


def parse_qwen3_next(config: Config, dtype: Dtype) -> Model:
    """Qwen3NextForCausalLM: the delta net's projections are fused in two matrices; experts."""
    config.expect("use_sliding_window", False)
    config.defaults(shared_expert_intermediate_size=512)
    return _model(config, dtype, _delta_net(config, dtype), sparse_layers(config))


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
    return _model(config, dtype, delta_net, [word] * layer_count(config))


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


def _model(config: Config, dtype: Dtype, delta_net: GatedDeltaNet, ffn: list[str]) -> Model:
    mixers: dict[str, Mixer] = {"linear": delta_net, "full": _attention(config, dtype)}
    kinds = list(zip(_types(config), ffn, strict=True))
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, feed_forwards(config, dtype, ffn))
    built = parts.model(config, dtype, layers, rms_norm("final_norm", delta_net.hidden, dtype))
    return parts.with_state_note(built, config, "mamba_ssm_dtype")
