"""Dense architectures with LayerNorm: GPT-2, StarCoder, OPT, GPT-J, GPT-NeoX, Phi, CodeGen, StableLM, OLMo."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Projections, QkNorm
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config, head_count, layer_count, rotary_dim, window
from llmviewer.models.dense import ON_SUM, Dense, sizes
from llmviewer.models.layer_patterns import nowhere
from llmviewer.models.model import Embedding, Model
from llmviewer.ops.elementwise import NormKind, bare_layer_norm, layer_norm
from llmviewer.ops.gemm import Linear

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


#: Entries of GPT-Neo's lists of layers.
NEO_TYPES = {"global": "full", "local": "sliding"}


def neo_types(config: Config) -> list[str]:
    """GPT-Neo: `attention_layers`, else the groups of types of `attention_types`, each repeated."""
    groups, depth = config.get("attention_types", [[["global", "local"], 12]]), layer_count(config)
    try:
        words = [word for types, repeats in groups for _ in range(min(repeats, depth)) for word in types]
    except (TypeError, ValueError):
        raise UserError(f"{config.where}: field 'attention_types' must list pairs of types and repeats") from None
    config.defaults(attention_layers=words)
    return [NEO_TYPES[word] for word in config.words("attention_layers", tuple(NEO_TYPES), depth)]


_layer_norm_gpt = partial(Dense, norm=layer_norm, gated=False, mlp_bias=True)

#: GPTNeoForCausalLM: every other layer has a short window; no biases on q, k and v; learned positions.
GPT_NEO = _layer_norm_gpt(
    defaults={
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "sliding_window": 256,
        "hidden_act": "gelu_new",
    },
    names={"window_size": "sliding_window"},
    ignored="embed_dropout",
    qkv_bias=False,
    out_bias=True,
    types=neo_types,
    rope=nowhere,
    positions=0,
    tied=True,
)
#: CodeGenForCausalLM: GPT-J with one matrix for q, k and v.
CODEGEN = _layer_norm_gpt(
    defaults={**sizes(4096, None, 28, 16, 50400, 2048), "hidden_act": "gelu_new", "rotary_dim": 64},
    rotated="rotary_dim",
    fused=True,
    qkv_bias=False,
    out_bias=False,
    parallel=True,
    head_bias=True,
)
#: StableLmForCausalLM: a gated MLP, a quarter of each head rotated; the 12B is parallel and has QK-norm.
STABLELM = Dense(
    defaults={
        **sizes(2560, 6912, 32, 32, 50304, 4096),
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
    },
    names={"rope_pct": "partial_rotary_factor"},
    ignored="rotary_scaling_factor",
    norm=layer_norm,
    qkv_bias="use_qkv_bias",
    out_bias=False,
    mlp_bias=False,
    qk_norm=QkNorm.EACH_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="qk_layernorm",
    parallel="use_parallel_residual",
)
#: OlmoForCausalLM: LayerNorm without weights; q, k and v may be clamped.
OLMO = Dense(defaults=sizes(4096, 11008, 32, 32, 50304, 2048), norm=bare_layer_norm, mlp_bias=False, clip="clip_qkv")
#: PersimmonForCausalLM: QK-norm with biases, half of each head rotated, squared ReLU.
PERSIMMON = _layer_norm_gpt(
    defaults={
        **sizes(4096, 16384, 36, 64, 262144, 16384),
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
    },
    fused=True,
    qkv_bias=True,
    out_bias=True,
    qk_norm=QkNorm.PER_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="qk_layernorm",
)
#: BioGptForCausalLM: OPT's position table, scaled embeddings.
BIOGPT = _layer_norm_gpt(
    defaults={**sizes(1024, 4096, 24, 16, 42384, 1024), "hidden_act": "gelu", "scale_embedding": True},
    qkv_bias=True,
    out_bias=True,
    rope=nowhere,
    positions=2,
    scaled="scale_embedding",
    tied=True,
)
#: XGLMForCausalLM: BioGPT with computed positions, which are no parameters.
XGLM = _layer_norm_gpt(
    defaults={**sizes(1024, 4096, 24, 16, 256008, 2048), "hidden_act": "gelu", "scale_embedding": True},
    qkv_bias=True,
    out_bias=True,
    rope=nowhere,
    scaled="scale_embedding",
    tied=True,
)
#: CTRLLMHeadModel: GPT-2 with computed positions and a bias on the head.
CTRL = _layer_norm_gpt(
    defaults={**sizes(1280, 8192, 48, 16, 246534, 256), "hidden_act": "relu"},
    names={"dff": "intermediate_size"},
    qkv_bias=True,
    out_bias=True,
    rope=nowhere,
    scaled=True,
    tied=True,
    head_bias=True,
)
#: OpenAIGPTLMHeadModel (GPT-1): norms after the sums, no final norm.
OPENAI_GPT = _layer_norm_gpt(
    defaults={**sizes(768, 3072, 12, 12, 40478, 512), "hidden_act": "gelu"},
    names={"afn": "hidden_act"},
    ignored="predict_special_tokens n_special",
    places=ON_SUM,
    fused=True,
    qkv_bias=True,
    out_bias=True,
    rope=nowhere,
    positions=0,
    final_norm=False,
    tied=True,
)
#: Jais2ForCausalLM: biases everywhere, squared ReLU.
JAIS2 = Dense(
    defaults={
        **sizes(3328, 26624, 32, 26, 150272, 8192),
        "hidden_act": "relu2",
        "attention_bias": True,
        "mlp_bias": True,
    },
    norm=layer_norm,
    gated=False,
)
