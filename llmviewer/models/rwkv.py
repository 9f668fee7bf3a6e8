"""RWKV-4: no attention; time mixing and channel mixing in every layer."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.rwkv4 import ChannelMix, TimeMix
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import hidden_size
from llmviewer.models.model import Model
from llmviewer.ops.norm import layer_norm


def parse_rwkv(config: Config, dtype: Dtype) -> Model:
    """RwkvForCausalLM: LayerNorms, one more of them after the embedding."""
    config.ignore("rescale_every")  # halves weights of later layers against overflow: no work
    config.ignore("context_length")  # of the training; the state has no limit
    hidden = hidden_size(config)
    time_mix = TimeMix(hidden=hidden, width=config.count("attention_hidden_size", hidden), dtype=dtype)
    channel_mix = ChannelMix(hidden=hidden, intermediate=config.count("intermediate_size", 4 * hidden), dtype=dtype)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), time_mix, channel_mix)
    built = parts.model(config, dtype, layers, layer_norm("final_norm", hidden, dtype))
    return replace(built, embedding=replace(built.embedding, norm=layer_norm("embedding_norm", hidden, dtype)))
