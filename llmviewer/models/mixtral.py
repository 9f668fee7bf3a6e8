"""Architectures with softmax attention and experts in every layer: Mixtral, OLMoE, Phi-3.5-MoE, DBRX and GPT-OSS."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, head_count, hidden_size, sliding_or_full
from llmviewer.models.decoder import Decoder
from llmviewer.models.layer_patterns import one_window
from llmviewer.ops.elementwise import activation, layer_norm

#: MixtralForCausalLM: Mistral's attention.
MIXTRAL = Decoder(types=one_window, experts=parts.wide_moe)
#: OlmoeForCausalLM: QK-norm over all heads together; q, k and v may be clamped.
OLMOE = Decoder(constants={"sliding_window": None}, clip="clip_qkv", qk_norm=QkNorm.WHOLE, experts=parts.wide_moe)
#: PhimoeForCausalLM: Mixtral with LayerNorm and a bias in the head.
PHIMOE = Decoder(types=one_window, experts=parts.wide_moe, norm=layer_norm, head_bias="lm_head_bias")


def _dbrx_attention(config: Config) -> None:
    """The fields of `attn_config` under their usual names."""
    config.expect("clip_qkv", None)
    attn, heads = config.section("attn_config"), head_count(config)
    config.override(clip_qkv=attn.get("clip_qkv"), num_key_value_heads=group_count(attn, "kv_n_heads", 1, heads=heads))


def _dbrx_experts(config: Config, dtype: Dtype) -> Moe:
    ffn, hidden = config.section("ffn_config"), hidden_size(config)
    ffn.expect("ffn_act_fn", {"name": "silu"})
    ffn.expect("hidden_size", hidden)
    # training only, except for how the chosen weights are normalised
    ffn.ignore("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    width, experts = ffn.count("ffn_hidden_size"), ffn.count("moe_num_experts")
    return Moe(
        expert=Mlp(hidden=hidden, intermediate=width, activation=activation("silu"), dtype=dtype),
        experts=experts,
        chosen=ffn.count("moe_top_k", maximum=experts),
        dtype=dtype,
        hidden=hidden,
    )


#: DbrxForCausalLM: LayerNorm without bias; one matrix for q, k, v, whose output is clamped.
DBRX = Decoder(
    constants={"sliding_window": None},
    prepare=_dbrx_attention,
    norm=partial(layer_norm, bias=False),
    fused=True,
    bias=False,
    clip="clip_qkv",
    experts=_dbrx_experts,
)


def _gpt_oss_experts(config: Config, dtype: Dtype) -> Moe:
    """Experts with fused gate and up, biases, and a SwiGLU with clamped inputs."""
    config.expect("hidden_act", "silu")
    config.expect("experts_per_token", config.count("num_experts_per_tok"))
    config.ignore("swiglu_limit", "swiglu_alpha")
    moe = parts.wide_moe(config, dtype)
    expert = replace(moe.expert, fused=True, bias=True, activation=activation("clamped_swiglu"))
    return replace(moe, expert=expert, router_bias=True)


#: GptOssForCausalLM: a sink per head, biases everywhere, a sliding window in every other layer.
GPT_OSS = Decoder(
    defaults={"head_dim": 64, "sliding_window": 128, "attention_bias": True},
    ignored="initial_context_length",
    sinks=True,
    types=partial(sliding_or_full, period=2),
    experts=_gpt_oss_experts,
)
