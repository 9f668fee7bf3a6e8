"""GPT-J; GPT-NeoX and Pythia."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import rotary_dim
from llmviewer.ops.norm import layer_norm


def parse_gptj(config: Config, dtype: Dtype) -> Model:
    """GPTJForCausalLM: attention and MLP side by side after one LayerNorm; biases in the MLP and the head alone."""
    config.expect("rotary", True)
    attention = parts.attention(config, dtype, Projections())
    attention = replace(attention, rotary_dim=config.count("rotary_dim", 64, most=attention.head_dim))
    norms = Norms(attn=layer_norm("attn_norm", attention.hidden, dtype))
    mlp = parts.plain_mlp(config, dtype, act="gelu_new")
    layers = parts.alike(config, norms, attention, mlp, Residual.PARALLEL)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.biased_head(plain)


def parse_gpt_neox(config: Config, dtype: Dtype) -> Model:
    """GPTNeoXForCausalLM (Pythia too): attention and MLP side by side, each after its own LayerNorm; biases."""
    bias = config.flag("attention_bias", default=True)
    attention = parts.attention(config, dtype, Projections(fused=True, qkv_bias=bias, out_bias=bias))
    rotated = rotary_dim(config, attention.head_dim, factor=config.fraction("rotary_pct", 0.25))
    parallel = config.flag("use_parallel_residual", default=True)
    layers = parts.alike(
        config,
        parts.pre_norms(config, dtype, layer_norm),
        replace(attention, rotary_dim=rotated),
        parts.plain_mlp(config, dtype, act="gelu"),
        Residual.PARALLEL if parallel else Residual.SEQUENTIAL,
    )
    return parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
