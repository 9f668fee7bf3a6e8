"""StarCoder2."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import window
from llmviewer.ops.norm import layer_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """Starcoder2ForCausalLM: LayerNorm, grouped-query attention with rope and a window, two-matrix MLP, biases."""
    config.expect("mlp_type", "default")
    config.expect("norm_type", "layer_norm")
    bias = config.flag("use_bias", default=True)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias, out_bias=bias))
    attention = replace(attention, window=window(config))
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu_pytorch_tanh"), bias=bias)
    layers = parts.alike(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    return parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)
