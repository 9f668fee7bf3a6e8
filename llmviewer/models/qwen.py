"""Qwen1.5 to 3, dense and with experts; Qwen3-Next and 3.5 with the gated delta rule in three of four layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, rotary_dim
from llmviewer.models.decoder import Decoder
from llmviewer.models.experts import sparse_layers
from llmviewer.models.layer_patterns import FullEvery, full_first, one_window
from llmviewer.models.model import Model


def _only_used_window(config: Config) -> None:
    """Remove the window of a model that does not use it."""
    if config.flag("use_sliding_window", default=False):
        config.count("sliding_window")
    else:
        config.override(sliding_window=None)


def _experts(config: Config, dtype: Dtype) -> FeedForward:
    """Routed experts, and a gated shared expert if the config gives it a size."""
    routed = parts.moe(config, dtype, config.count("moe_intermediate_size"))
    width = config.count("shared_expert_intermediate_size", 0, minimum=0)
    return replace(routed, shared=parts.mlp(config, dtype, width), shared_gate=True) if width else routed


#: Qwen2ForCausalLM (Qwen1.5, 2, 2.5): Llama with biases on q, k and v, which the class has whatever a config says.
QWEN2 = Decoder(
    constants={"use_mrope": False, "attention_bias": True},
    prepare=_only_used_window,
    bias=False,
    qkv_bias=True,
    types=partial(full_first, default=28),
)
#: Qwen3ForCausalLM: QK-norm per head, biases only if `attention_bias`.
QWEN3 = Decoder(
    defaults={"head_dim": 128},
    constants={"qkv_bias": False, "use_qk_norm": True},
    prepare=_only_used_window,
    mlp_bias=False,
    qk_norm=QkNorm.PER_HEAD,
    types=partial(full_first, default=28),
)
#: Qwen2MoeForCausalLM: routed experts and one shared expert scaled by a sigmoid gate.
QWEN2_MOE = Decoder(
    defaults={"shared_expert_intermediate_size": 5632, "qkv_bias": True},
    constants={"use_sliding_window": False},  # published code and transformers disagree on which layers slide
    ignored="max_window_layers",
    bias=False,
    qkv_bias="qkv_bias",
    experts=_experts,
    placement=sparse_layers,
)
#: Qwen3MoeForCausalLM: no shared expert; if a window is used, all layers have it.
QWEN3_MOE = replace(
    QWEN3,
    defaults={},
    constants={**QWEN3.constants, "shared_expert_intermediate_size": 0},
    ignored="max_window_layers",
    types=one_window,
    experts=_experts,
    placement=sparse_layers,
)


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


def _gated_attention(config: Config, dtype: Dtype) -> Attention:
    """A second query projection gates the output; a quarter of each head is rotated."""
    config.defaults(head_dim=256)
    config.expect("attn_output_gate", True)
    config.expect("output_gate_type", "swish", "silu")
    attention = parts.attention(config, dtype, parts.projections(config))
    rotated = rotary_dim(config, attention.head_dim, factor=0.25)
    return replace(attention, qk_norm=QkNorm.PER_HEAD, gate=True, rotary_dim=rotated)


#: The delta net, but for attention in every fourth layer.
_types = FullEvery("full_attention_interval", 4, other="linear")


def _mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    """The delta net, whose projections Qwen3-Next fuses in two matrices, and attention."""
    return {"linear": _delta_net(config, dtype), "full": _gated_attention(config, dtype)}


def _separate_mixers(config: Config, dtype: Dtype) -> dict[str, Mixer]:
    return {"linear": replace(_delta_net(config, dtype), fused=False), "full": _gated_attention(config, dtype)}


def _state_note(model: Model, config: Config) -> Model:
    return parts.with_state_note(model, config, "mamba_ssm_dtype")


#: Qwen3NextForCausalLM: the delta net's projections are fused in two matrices; experts.
QWEN3_NEXT = Decoder(
    defaults={"shared_expert_intermediate_size": 512},
    constants={"use_sliding_window": False},
    mixers=_mixers,
    types=_types,
    mlp_bias=False,
    experts=_experts,
    placement=sparse_layers,
    finish=_state_note,
)
#: Qwen3_5ForCausalLM: separate projections of the delta net; dense MLPs.
QWEN3_5 = Decoder(
    constants={"mlp_only_layers": []}, mixers=_separate_mixers, types=_types, mlp_bias=False, finish=_state_note
)
#: Qwen3_5MoeForCausalLM: separate projections of the delta net; experts in every layer.
QWEN3_5_MOE = replace(QWEN3_5, defaults={"shared_expert_intermediate_size": 512}, experts=_experts)
