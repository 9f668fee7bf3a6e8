"""BLOOM, MPT and Falcon: one matrix for q, k, v, a two-matrix MLP, tied head; ALiBi (optional in Falcon)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config, group_count, hidden_size
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm


def parse_bloom(config: Config, dtype: Dtype) -> Model:
    """BloomForCausalLM: a LayerNorm also on the embeddings; biases everywhere."""
    config.expect("apply_residual_connection_post_layernorm", False)
    # fusions of the training code, and its ALiBi offset
    config.ignore("bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi")
    projections = Projections(fused=True, qkv_bias=True, out_bias=True)
    attention = replace(parts.attention(config, dtype, projections), rotary_dim=0, alibi=True)
    mlp = parts.plain_mlp(config, dtype, act="gelu")
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)
    norm = layer_norm("embedding_norm", attention.hidden, dtype)
    return replace(plain, embedding=replace(plain.embedding, norm=norm))


def parse_mpt(config: Config, dtype: Dtype) -> Model:
    """MptForCausalLM: no biases, not even in the norms."""
    config.expect("no_bias", True)
    config.expect("norm_type", "low_precision_layernorm")
    # with ALiBi no positions are learned; the other fields are for training and for the original code
    config.ignore("learned_pos_emb", "embedding_fraction", "init_config", "init_device", "verbose", "tokenizer_name")
    attn = config.section("attn_config")
    attn.expect("alibi", True)
    attn.expect("attn_type", "multihead_attention", "multiquery_attention", "grouped_query_attention")
    config.ignore("fc_type")  # choice of a kernel
    if config.has("ffn_config"):
        config.section("ffn_config").expect("ffn_type", "mptmlp")
    attn.expect("qk_ln", False)
    attn.expect("prefix_lm", False)
    attn.ignore("attn_impl", "attn_uses_sequence_id", "alibi_bias_max")
    projections = Projections(fused=True, clip=attn.has("clip_qkv"))
    attention = replace(parts.attention(config, dtype, projections), rotary_dim=0, alibi=True)
    attention = replace(attention, kv_heads=_mpt_kv_heads(attn, attention.heads))
    width = config.count("expansion_ratio", 4) * attention.hidden
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu"), intermediate=width, bias=False)
    norm = partial(layer_norm, bias=False)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, norm), attention, mlp)
    plain = parts.model(config, dtype, layers, norm("final_norm", attention.hidden, dtype), tied=True)
    return replace(plain, head=replace(plain.head, logit_flops=float(config.has("logit_scale"))))


def _mpt_kv_heads(attn: Config, heads: int) -> int:
    """All heads, one, or `kv_n_heads` of them."""
    kind = attn.get("attn_type", "multihead_attention")
    stated = group_count(attn, "kv_n_heads", heads if kind == "multihead_attention" else 1, heads=heads)
    return 1 if kind == "multiquery_attention" else stated


def parse_falcon(config: Config, dtype: Dtype) -> Model:
    """FalconForCausalLM: attention and MLP in parallel, few key-value heads."""
    config.expect("apply_residual_connection_post_layernorm", False)
    config.expect("ff_factor", 4)
    config.defaults(max_position_embeddings=2048)
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu"), bias=_falcon_bias(config))
    norms, residual = _falcon_norms(config, dtype)
    layers = parts.uniform_layers(config, norms, _falcon_attention(config, dtype), mlp, residual)
    return parts.model(config, dtype, layers, layer_norm("final_norm", hidden_size(config), dtype), tied=True)


def _falcon_attention(config: Config, dtype: Dtype) -> Attention:
    """In the old decoder `multi_query` means one key-value head, whatever `num_kv_heads` says (7B)."""
    projections = Projections(fused=True, qkv_bias=_falcon_bias(config), out_bias=_falcon_bias(config))
    attention = parts.attention(config, dtype, projections)
    stated = group_count(config, "num_kv_heads", attention.heads, heads=attention.heads)
    multi_query = config.flag("multi_query", default=True) and not _is_new_falcon(config)
    attention = replace(attention, kv_heads=1 if multi_query else stated)
    return replace(attention, rotary_dim=0, alibi=True) if config.flag("alibi", default=False) else attention


def _falcon_norms(config: Config, dtype: Dtype) -> tuple[Norms, Residual]:
    """In parallel: a norm for each branch (40B) or one for both (7B).  In sequence (RW): one before each branch."""
    both = parts.pre_norms(config, dtype, layer_norm)
    count = config.count("num_ln_in_parallel_attn", 2 if _is_new_falcon(config) else 1)
    if not config.flag("parallel_attn", default=True):
        config.expect("new_decoder_architecture", False)
        return both, Residual.SEQUENTIAL
    return both if count == 2 else Norms(attn=both.attn), Residual.PARALLEL


def _falcon_bias(config: Config) -> bool:
    return config.flag("bias", default=False)


def _is_new_falcon(config: Config) -> bool:
    return config.flag("new_decoder_architecture", default=False)
