"""GPT-OSS: alternating windows, attention sinks, experts in four bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.dtypes import Dtype, named
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.layers.moe import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import rms_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """GptOssForCausalLM: a sink per head, biases everywhere, every other layer slides, experts in every layer."""
    config.ignore("initial_context_length")
    attention, experts, kinds = _attention(config, dtype), _experts(config, dtype), _kinds(config)
    window = float(config.count("sliding_window", 128))

    def layer(kind: tuple[str], times: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            times=times,
            norms=parts.pre_norms(config, dtype),
            mixer=replace(attention, window=window if kind == ("sliding",) else np.inf),
            feed_forward=experts,
        )

    norm = rms_norm("final_norm", attention.hidden, dtype)
    return parts.model(config, dtype, parts.grouped(kinds, layer), norm)


def _kinds(config: Config) -> list[tuple[str]]:
    return [(word,) for word in parts.alternating(config, period=2)]


def _attention(config: Config, dtype: Dtype) -> Attention:
    bias = config.flag("attention_bias", default=True)
    projections = Projections(qkv_bias=bias, out_bias=bias)
    return replace(parts.attention(config, dtype, projections, head_dim=64), sinks=True)


def _experts(config: Config, dtype: Dtype) -> Moe:
    """Gate and up fused, with biases; clamps around the SwiGLU; weights in MXFP4 where the checkpoint has them so."""
    config.expect("hidden_act", "silu")
    config.expect("experts_per_token", config.count("num_experts_per_tok"))
    config.ignore("swiglu_limit", "swiglu_alpha")
    moe = parts.moe(config, dtype, config.count("intermediate_size"))
    stored = _expert_dtype(config, dtype)
    expert = replace(moe.expert, fused=True, bias=True, activation=activation("clamped_swiglu"), dtype=stored)
    return replace(moe, expert=expert, router_bias=True)


def _expert_dtype(config: Config, dtype: Dtype) -> Dtype:
    if not config.has("quantization_config"):
        return dtype
    quantization = config.part("quantization_config")
    quantization.expect("quant_method", "mxfp4")
    quantization.ignore("modules_to_not_convert")  # everything but the experts
    return named("mxfp4")
