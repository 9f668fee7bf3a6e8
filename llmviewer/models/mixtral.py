"""Architectures with softmax attention and experts in every layer: Mixtral, OLMoE, Phi-3.5-MoE, DBRX and GPT-OSS."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections, QkNorm
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size, sliding_or_full, window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation, layer_norm, rms_norm


def parse_mixtral(config: Config, dtype: Dtype) -> Model:
    """MixtralForCausalLM: Mistral's attention."""
    experts = parts.moe(config, dtype, config.count("intermediate_size"))
    attention = replace(parts.attention(config, dtype, parts.projections(config)), window=window(config))
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype), attention, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def parse_olmoe(config: Config, dtype: Dtype) -> Model:
    """OlmoeForCausalLM: QK-norm over all heads together; q, k and v may be clamped."""
    projections = replace(parts.projections(config), clip=config.has("clip_qkv"))
    attention = replace(parts.attention(config, dtype, projections), qk_norm=QkNorm.WHOLE)
    experts = parts.moe(config, dtype, config.count("intermediate_size"))
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype), attention, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def parse_phimoe(config: Config, dtype: Dtype) -> Model:
    """PhimoeForCausalLM: Mixtral with LayerNorm and a bias in the head."""
    attention = replace(parts.attention(config, dtype, parts.projections(config)), window=window(config))
    experts = parts.moe(config, dtype, config.count("intermediate_size"))
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), attention, experts)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.with_head_bias(plain) if config.flag("lm_head_bias", default=False) else plain


def parse_dbrx(config: Config, dtype: Dtype) -> Model:
    """DbrxForCausalLM: LayerNorm without bias; one matrix for q, k, v, whose output is clamped."""
    attn = config.section("attn_config")
    projections = Projections(fused=True, clip=attn.has("clip_qkv"))
    attention = parts.attention(config, dtype, projections)
    attention = replace(attention, kv_heads=group_count(attn, "kv_n_heads", 1, heads=attention.heads))
    norm = partial(layer_norm, bias=False)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, norm), attention, _dbrx_experts(config, dtype))
    return parts.model(config, dtype, layers, norm("final_norm", attention.hidden, dtype))


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


def parse_gpt_oss(config: Config, dtype: Dtype) -> Model:
    """GptOssForCausalLM: a sink per head, biases everywhere, a sliding window in every other layer."""
    config.defaults(head_dim=64, sliding_window=128, attention_bias=True)
    config.ignore("initial_context_length")
    attention = replace(parts.attention(config, dtype, parts.projections(config)), sinks=True)
    mixers = {"full": attention, "sliding": replace(attention, window=window(config))}
    kinds = [(word, "moe") for word in sliding_or_full(config, period=2)]
    experts = {"moe": _gpt_oss_experts(config, dtype)}
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, experts)
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def _gpt_oss_experts(config: Config, dtype: Dtype) -> Moe:
    """Experts with fused gate and up, biases, and a SwiGLU with clamped inputs."""
    config.expect("hidden_act", "silu")
    config.expect("experts_per_token", config.count("num_experts_per_tok"))
    config.ignore("swiglu_limit", "swiglu_alpha")
    moe = parts.moe(config, dtype, config.count("intermediate_size"))
    expert = replace(moe.expert, fused=True, bias=True, activation=activation("clamped_swiglu"))
    return replace(moe, expert=expert, router_bias=True)
