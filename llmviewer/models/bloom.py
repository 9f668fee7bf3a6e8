"""BLOOM, MPT and Falcon: one matrix for q, k, v, a two-matrix MLP, tied head; ALiBi (optional in Falcon)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.models.config import Config, group_count, head_count, hidden_size
from llmviewer.models.decoder import Decoder, with_attention
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm

_gelu_form = partial(
    Decoder,
    names={"activation": "hidden_act", "ffn_hidden_size": "intermediate_size"},
    norm=layer_norm,
    gated=False,
    fused=True,
    tied=True,
)


def _with_alibi(model: Model, config: Config) -> Model:
    return with_attention(model, rotary_dim=0, alibi=True)


#: BloomForCausalLM: a LayerNorm also on the embeddings; biases everywhere.
BLOOM = _gelu_form(
    defaults={"hidden_act": "gelu"},
    constants={"apply_residual_connection_post_layernorm": False},
    # fusions of the training code, and its ALiBi offset
    ignored="bias_dropout_fusion masked_softmax_fusion skip_bias_add skip_bias_add_qkv offset_alibi",
    bias=True,
    embedding_norm=True,
    finish=_with_alibi,
)


def _mpt_fields(config: Config) -> None:
    """The fields of `attn_config`, and the width of the MLP, under their usual names."""
    config.expect("clip_qkv", None)
    attn = config.section("attn_config")
    attn.expect("alibi", True)
    attn.expect("attn_type", "multihead_attention", "multiquery_attention", "grouped_query_attention")
    if config.has("ffn_config"):
        config.section("ffn_config").expect("ffn_type", "mptmlp")
    attn.expect("qk_ln", False)
    attn.expect("prefix_lm", False)
    attn.ignore("attn_impl", "attn_uses_sequence_id", "alibi_bias_max")
    heads, kind = head_count(config), attn.get("attn_type", "multihead_attention")
    stated = group_count(attn, "kv_n_heads", heads if kind == "multihead_attention" else 1, heads=heads)
    config.override(
        num_key_value_heads=1 if kind == "multiquery_attention" else stated,
        intermediate_size=config.count("expansion_ratio", 4) * hidden_size(config),
        clip_qkv=attn.get("clip_qkv"),
    )


def _mpt_scores(model: Model, config: Config) -> Model:
    """The model with ALiBi, and scaled logits if `logit_scale` is set."""
    scaled = replace(model, head=replace(model.head, logit_flops=float(config.has("logit_scale"))))
    return _with_alibi(scaled, config)


#: MptForCausalLM: no biases, not even in the norms.
MPT = _gelu_form(
    defaults={"hidden_act": "gelu"},
    constants={"no_bias": True, "norm_type": "low_precision_layernorm"},
    # with ALiBi no positions are learned; the other fields choose kernels or are for training and the original code
    ignored="learned_pos_emb embedding_fraction init_config init_device verbose tokenizer_name fc_type",
    prepare=_mpt_fields,
    norm=partial(layer_norm, bias=False),
    bias=False,
    clip="clip_qkv",
    finish=_mpt_scores,
)


def _falcon_heads(config: Config) -> None:
    """Key-value heads: in the old decoder `multi_query` means one, whatever `num_kv_heads` says (7B)."""
    heads = head_count(config)
    stated = group_count(config, "num_kv_heads", heads, heads=heads)
    multi_query = config.flag("multi_query", default=True) and not _is_new_falcon(config)
    config.override(num_key_value_heads=1 if multi_query else stated)


_FALCON = _gelu_form(
    defaults={"hidden_act": "gelu", "max_position_embeddings": 2048},
    constants={"apply_residual_connection_post_layernorm": False, "ff_factor": 4},
    prepare=_falcon_heads,
    bias="bias",
)


def parse_falcon(config: Config, dtype: Dtype) -> Model:
    """FalconForCausalLM: few key-value heads; ALiBi in place of rope if `alibi` is set.

    In parallel: a norm for each branch (40B) or one for both (7B).  In sequence (RW): one before each branch.
    """
    parallel = config.flag("parallel_attn", default=True)
    if not parallel:
        config.expect("new_decoder_architecture", False)
    norms = config.count("num_ln_in_parallel_attn", 2 if _is_new_falcon(config) else 1)
    has_alibi = config.flag("alibi", default=False)
    form = replace(_FALCON, parallel=parallel, shared_norm=norms != 2, finish=_with_alibi if has_alibi else None)
    return form(config, dtype)


def _is_new_falcon(config: Config) -> bool:
    return config.flag("new_decoder_architecture", default=False)
