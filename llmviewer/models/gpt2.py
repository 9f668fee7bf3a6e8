"""GPT-2 and StarCoder."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import head_count
from llmviewer.ops.norm import layer_norm

#: How the authors' own code ran the model.
RUN_TIME = ("inference_runner", "max_batch_size", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input")


def parse_gpt2(config: Config, dtype: Dtype) -> Model:
    """GPT2LMHeadModel: learned positions, LayerNorm, one matrix for q, k, v, biases everywhere, tied head."""
    return _model(config, dtype, head_count(config), act="gelu_new")


def parse_gpt_bigcode(config: Config, dtype: Dtype) -> Model:
    """GPTBigCodeForCausalLM (StarCoder): GPT-2 with one head of keys and values."""
    config.ignore(*RUN_TIME)
    kv_heads = 1 if config.flag("multi_query", default=True) else head_count(config)
    return _model(config, dtype, kv_heads, act="gelu_pytorch_tanh")


def _model(config: Config, dtype: Dtype, kv_heads: int, *, act: str) -> Model:
    config.expect("add_cross_attention", False)
    projections = Projections(fused=True, qkv_bias=True, out_bias=True)
    attention = replace(parts.attention(config, dtype, projections), kv_heads=kv_heads, rotary_dim=0)
    mlp = parts.plain_mlp(config, dtype, act=act)
    layers = parts.alike(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)
    positions = config.count(config.one_of("n_positions", "max_position_embeddings"))
    return replace(plain, embedding=replace(plain.embedding, positions=positions))
