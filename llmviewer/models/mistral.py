"""Mistral 7B, Nemo, Small, and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.decoder import FeedForward
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size, window
from llmviewer.ops.norm import rms_norm


def parse_mistral(config: Config, dtype: Dtype) -> Model:
    """MistralForCausalLM: Llama's layer; one window for all layers, or none."""
    config.defaults(sliding_window=4096)
    return _model(config, dtype, parts.gated_mlp(config, dtype))


def parse_mixtral(config: Config, dtype: Dtype) -> Model:
    """MixtralForCausalLM: experts in every layer."""
    return _model(config, dtype, parts.moe(config, dtype, config.count("intermediate_size")))


def _model(config: Config, dtype: Dtype, feed_forward: FeedForward) -> Model:
    attention = replace(parts.attention(config, dtype, parts.projections(config)), window=window(config))
    layers = parts.alike(config, parts.pre_norms(config, dtype), attention, feed_forward)
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
