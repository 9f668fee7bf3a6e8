"""Nemotron-4 and Minitron: squared ReLU between two matrices, LayerNorm with weights kept around zero."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size
from llmviewer.ops.norm import layer_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """NemotronForCausalLM: half of each head rotated, no gate, norms with weight and bias."""
    config.defaults(partial_rotary_factor=0.5, hidden_act="relu2", head_dim=config.get("kv_channels"))
    mlp = parts.mlp(config, dtype, config.count("intermediate_size"))
    layers = parts.alike(
        config,
        parts.pre_norms(config, dtype, layer_norm),
        parts.attention(config, dtype, parts.projections(config)),
        replace(mlp, gated=False, bias=config.flag("mlp_bias", default=False)),
    )
    return parts.model(config, dtype, layers, layer_norm("final_norm", hidden_size(config), dtype))
