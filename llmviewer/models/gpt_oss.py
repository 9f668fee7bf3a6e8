"""GPT-OSS: alternating windows, attention sinks, experts with biases."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.moe import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import window
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import rms_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """GptOssForCausalLM: a sink per head, biases everywhere, every other layer slides, experts in every layer."""
    config.defaults(head_dim=64, sliding_window=128, attention_bias=True)
    config.ignore("initial_context_length")
    attention = replace(parts.attention(config, dtype, parts.projections(config)), sinks=True)
    mixers = {"full": attention, "sliding": replace(attention, window=window(config))}
    kinds = [(word, "moe") for word in parts.alternating(config, period=2)]
    layers = parts.by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"moe": _experts(config, dtype)})
    return parts.model(config, dtype, layers, rms_norm("final_norm", attention.hidden, dtype))


def _experts(config: Config, dtype: Dtype) -> Moe:
    """Gate and up fused, with biases; clamps around the SwiGLU."""
    config.expect("hidden_act", "silu")
    config.expect("experts_per_token", config.count("num_experts_per_tok"))
    config.ignore("swiglu_limit", "swiglu_alpha")
    moe = parts.moe(config, dtype, config.count("intermediate_size"))
    expert = replace(moe.expert, fused=True, bias=True, activation=activation("clamped_swiglu"))
    return replace(moe, expert=expert, router_bias=True)
