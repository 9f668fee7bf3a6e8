"""BLOOM and MPT: ALiBi, one matrix for q, k, v."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.norm import layer_norm


def parse_bloom(config: Config, dtype: Dtype) -> Model:
    """BloomForCausalLM: a LayerNorm on the embeddings too; biases everywhere; tied head."""
    config.expect("apply_residual_connection_post_layernorm", False)
    # fusions of the training code, and its ALiBi offset
    config.ignore("bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi")
    projections = Projections(fused=True, qkv_bias=True, out_bias=True)
    attention = replace(parts.attention(config, dtype, projections), rotary_dim=0, alibi=True)
    mlp = parts.plain_mlp(config, dtype, act="gelu")
    layers = parts.alike(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)
    norm = layer_norm("embedding_norm", attention.hidden, dtype)
    return replace(plain, embedding=replace(plain.embedding, norm=norm))


def parse_mpt(config: Config, dtype: Dtype) -> Model:
    """MptForCausalLM: no biases, not even in the norms; tied head."""
    config.expect("no_bias", True)
    config.expect("norm_type", "low_precision_layernorm")
    # with ALiBi no position is learned; the others belong to training and to the authors' own code
    config.ignore("learned_pos_emb", "embedding_fraction", "init_config", "init_device", "verbose", "tokenizer_name")
    attn = config.part("attn_config")
    attn.expect("alibi", True)
    attn.expect("attn_type", "multihead_attention")
    attn.expect("qk_ln", False)
    attn.expect("prefix_lm", False)
    attn.ignore("attn_impl", "attn_uses_sequence_id", "alibi_bias_max")
    projections = Projections(fused=True, clip=attn.has("clip_qkv"))
    attention = replace(parts.attention(config, dtype, projections), rotary_dim=0, alibi=True)
    width = config.count("expansion_ratio", 4) * attention.hidden
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu"), intermediate=width, bias=False)
    norm = partial(layer_norm, bias=False)
    layers = parts.alike(config, parts.pre_norms(config, dtype, norm), attention, mlp)
    plain = parts.model(config, dtype, layers, norm("final_norm", attention.hidden, dtype), tied=True)
    return replace(plain, head=replace(plain.head, logit_flops=float(config.has("logit_scale"))))
