"""Falcon."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import hidden_size, shared_heads
from llmviewer.ops.norm import layer_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """FalconForCausalLM: one matrix for q, k, v; attention and MLP side by side; few heads of keys and values."""
    config.expect("apply_residual_connection_post_layernorm", False)
    config.expect("ff_factor", 4)
    config.defaults(max_position_embeddings=2048)
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu"), bias=_bias(config))
    norms, residual = _norms(config, dtype)
    layers = parts.alike(config, norms, _attention(config, dtype), mlp, residual)
    return parts.model(config, dtype, layers, layer_norm("final_norm", hidden_size(config), dtype), tied=True)


def _attention(config: Config, dtype: Dtype) -> Attention:
    """In the old decoder `multi_query` means one head of keys and values, whatever `num_kv_heads` says (7B)."""
    projections = Projections(fused=True, qkv_bias=_bias(config), out_bias=_bias(config))
    attention = parts.attention(config, dtype, projections)
    stated = shared_heads(config, "num_kv_heads", attention.heads, serve=attention.heads)
    single = config.flag("multi_query", default=True) and not _is_new(config)
    attention = replace(attention, kv_heads=1 if single else stated)
    return replace(attention, rotary_dim=0, alibi=True) if config.flag("alibi", default=False) else attention


def _norms(config: Config, dtype: Dtype) -> tuple[Norms, Residual]:
    """Side by side: a norm for each branch (40B) or one for both (7B); one after the other: the usual two (RW)."""
    two = parts.pre_norms(config, dtype, layer_norm)
    count = config.count("num_ln_in_parallel_attn", 2 if _is_new(config) else 1)
    if not config.flag("parallel_attn", default=True):
        config.expect("new_decoder_architecture", False)
        return two, Residual.SEQUENTIAL
    return two if count == 2 else Norms(attn=two.attn), Residual.PARALLEL


def _bias(config: Config) -> bool:
    return config.flag("bias", default=False)


def _is_new(config: Config) -> bool:
    return config.flag("new_decoder_architecture", default=False)
