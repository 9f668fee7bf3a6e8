"""Architectures with LayerNorm and a two-matrix MLP: GPT-2, StarCoder 1 and 2, OPT, GPT-J, GPT-NeoX, Phi-1.5 and 2."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections, QkNorm
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import head_count, rotary_dim, window
from llmviewer.models.model import Embedding, Model
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import NormKind, layer_norm

#: Run-time settings of StarCoder's original code.
BIGCODE_RUN_TIME = (
    "inference_runner",
    "max_batch_size",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "validate_runner_input",
)
#: OPT's position table starts at row 2: in fairseq the first rows belonged to padding.
OPT_POSITION_OFFSET = 2


def parse_gpt2(config: Config, dtype: Dtype) -> Model:
    """GPT2LMHeadModel: learned positions, one matrix for q, k, v, biases everywhere, tied head.

    SantaCoder's own class has one key-value head.
    """
    config.expect("attention_head_type", "multihead", "multiquery")
    kv_heads = 1 if config.get("attention_head_type") == "multiquery" else head_count(config)
    return _gpt2(config, dtype, kv_heads, act="gelu_new")


def parse_gpt_bigcode(config: Config, dtype: Dtype) -> Model:
    """GPTBigCodeForCausalLM (StarCoder): GPT-2 with one key-value head."""
    config.ignore(*BIGCODE_RUN_TIME)
    kv_heads = 1 if config.flag("multi_query", default=True) else head_count(config)
    return _gpt2(config, dtype, kv_heads, act="gelu_pytorch_tanh")


def _gpt2(config: Config, dtype: Dtype, kv_heads: int, *, act: str) -> Model:
    config.expect("add_cross_attention", False)
    projections = Projections(fused=True, qkv_bias=True, out_bias=True)
    attention = replace(parts.attention(config, dtype, projections), kv_heads=kv_heads, rotary_dim=0)
    mlp = parts.plain_mlp(config, dtype, act=act)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)
    positions = config.count(config.first_present("n_positions", "max_position_embeddings"))
    return replace(plain, embedding=replace(plain.embedding, positions=positions))


def parse_starcoder2(config: Config, dtype: Dtype) -> Model:
    """Starcoder2ForCausalLM: grouped-query attention with rope and a window, biases, tied head."""
    config.expect("mlp_type", "default")
    config.expect("norm_type", "layer_norm")
    bias = config.flag("use_bias", default=True)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias, out_bias=bias))
    attention = replace(attention, window=window(config))
    mlp = replace(parts.plain_mlp(config, dtype, act="gelu_pytorch_tanh"), bias=bias)
    layers = parts.uniform_layers(config, parts.pre_norms(config, dtype, layer_norm), attention, mlp)
    return parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype), tied=True)


def parse_opt(config: Config, dtype: Dtype) -> Model:
    """OPTForCausalLM: learned positions, biases, ReLU, tied head.

    The 350m differs: it normalises after each sum, has no final norm, and its table is narrower than its layers.
    """
    config.expect("layer_norm_elementwise_affine", True)
    bias = config.flag("enable_bias", default=True)
    norm_first = config.flag("do_layer_norm_before", default=True)
    attention = parts.attention(config, dtype, Projections(qkv_bias=bias, out_bias=bias))
    attention = replace(attention, rotary_dim=0)
    mlp = replace(parts.plain_mlp(config, dtype, act="relu"), bias=bias)
    pre_norms = parts.pre_norms(config, dtype, layer_norm)
    norms = pre_norms if norm_first else Norms(attn_sum=pre_norms.attn, mlp_sum=pre_norms.mlp)
    removed = config.flag("_remove_final_layer_norm", default=False)
    has_final_norm = norm_first and not removed
    final_norm = layer_norm("final_norm", attention.hidden, dtype) if has_final_norm else None
    layers = parts.uniform_layers(config, norms, attention, mlp)
    return _with_opt_table(config, dtype, parts.model(config, dtype, layers, final_norm, tied=True))


def _with_opt_table(config: Config, dtype: Dtype, model: Model) -> Model:
    """Embedding and head of `word_embed_proj_dim`, with projections to and from the hidden width if it differs."""
    hidden, width = model.hidden, config.count("word_embed_proj_dim", model.hidden)
    embedding = Embedding(
        vocabulary=model.embedding.vocabulary,
        width=width,
        dtype=dtype,
        positions=config.count("max_position_embeddings") + OPT_POSITION_OFFSET,
        position_width=hidden,
    )
    head = replace(model.head, lm_head=replace(model.head.lm_head, in_features=width))
    if width != hidden:
        project_in = Linear(name="project_in", in_features=width, out_features=hidden, dtype=dtype)
        project_out = Linear(name="project_out", in_features=hidden, out_features=width, dtype=dtype)
        embedding, head = replace(embedding, project=project_in), replace(head, project=project_out)
    return replace(model, embedding=embedding, head=head)


def parse_gptj(config: Config, dtype: Dtype) -> Model:
    """GPTJForCausalLM: attention and MLP in parallel after one LayerNorm; biases only in the MLP and the head."""
    config.expect("rotary", True)
    attention = parts.attention(config, dtype, Projections())
    attention = replace(attention, rotary_dim=config.count("rotary_dim", 64, maximum=attention.head_dim))
    norms = Norms(attn=layer_norm("attn_norm", attention.hidden, dtype))
    mlp = parts.plain_mlp(config, dtype, act="gelu_new")
    layers = parts.uniform_layers(config, norms, attention, mlp, Residual.PARALLEL)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.with_head_bias(plain)


def parse_gpt_neox(config: Config, dtype: Dtype) -> Model:
    """GPTNeoXForCausalLM (also Pythia): attention and MLP in parallel, each after its own LayerNorm; biases."""
    bias = config.flag("attention_bias", default=True)
    attention = parts.attention(config, dtype, Projections(fused=True, qkv_bias=bias, out_bias=bias))
    rotated = rotary_dim(config, attention.head_dim, factor=config.fraction("rotary_pct", 0.25))
    parallel = config.flag("use_parallel_residual", default=True)
    layers = parts.uniform_layers(
        config,
        parts.pre_norms(config, dtype, layer_norm),
        replace(attention, rotary_dim=rotated),
        parts.plain_mlp(config, dtype, act="gelu"),
        Residual.PARALLEL if parallel else Residual.SEQUENTIAL,
    )
    return parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))


def parse_phi(config: Config, dtype: Dtype) -> Model:
    """PhiForCausalLM: attention and MLP in parallel after one LayerNorm; half of each head rotated; biases."""
    config.defaults(partial_rotary_factor=0.5)
    attention = parts.attention(config, dtype, Projections(qkv_bias=True, out_bias=True))
    if config.flag("qk_layernorm", default=False):
        attention = replace(attention, qk_norm=QkNorm.PER_HEAD, norm_kind=NormKind.LAYER)
    norms = Norms(attn=layer_norm("attn_norm", attention.hidden, dtype))
    mlp = parts.plain_mlp(config, dtype, act="gelu_new")
    layers = parts.uniform_layers(config, norms, attention, mlp, Residual.PARALLEL)
    plain = parts.model(config, dtype, layers, layer_norm("final_norm", attention.hidden, dtype))
    return parts.with_head_bias(plain)
