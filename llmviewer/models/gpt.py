"""Dense architectures with LayerNorm: GPT-2, StarCoder, OPT, GPT-J, GPT-NeoX, Phi, CodeGen, StableLM, OLMo."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config, head_count, layer_count, rotary_dim
from llmviewer.models.decoder import BEFORE, ON_SUM, Decoder, attention_of, with_attention
from llmviewer.models.layer_patterns import nowhere, one_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import NormKind, bare_layer_norm, layer_norm
from llmviewer.ops.gemm import Linear

#: OPT's position table starts at row 2: in fairseq the first rows belonged to padding.
OPT_POSITION_OFFSET = 2

_layer_norm_gpt = partial(Decoder, norm=layer_norm, gated=False, bias=True)


def _gpt2_heads(config: Config) -> None:
    """One key-value head in SantaCoder's own class, else as many as heads."""
    config.expect("attention_head_type", "multihead", "multiquery")
    config.override(num_key_value_heads=1 if config.get("attention_head_type") == "multiquery" else head_count(config))


def _bigcode_heads(config: Config) -> None:
    """One key-value head unless `multi_query` is false."""
    config.override(num_key_value_heads=1 if config.flag("multi_query", default=True) else head_count(config))


#: GPT2LMHeadModel: learned positions, one matrix for q, k, v, biases everywhere, tied head.
GPT2 = _layer_norm_gpt(
    defaults={"hidden_act": "gelu_new"},
    constants={"add_cross_attention": False},
    prepare=_gpt2_heads,
    fused=True,
    rope=nowhere,
    positions=0,
    tied=True,
)
#: GPTBigCodeForCausalLM (StarCoder): GPT-2 with one key-value head; the fields are settings of its original code.
GPT_BIGCODE = replace(
    GPT2,
    defaults={"hidden_act": "gelu_pytorch_tanh"},
    prepare=_bigcode_heads,
    ignored="inference_runner max_batch_size pad_key_length pre_allocate_kv_cache validate_runner_input",
)
#: Starcoder2ForCausalLM: grouped-query attention with rope and a window, biases, tied head.
STARCODER2 = _layer_norm_gpt(
    defaults={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
    constants={"mlp_type": "default", "norm_type": "layer_norm"},
    bias="use_bias",
    types=one_window,
    tied=True,
)


def _opt_table(model: Model, config: Config) -> Model:
    """Embedding and head of `word_embed_proj_dim`, with projections to and from the hidden width if it differs."""
    hidden, width = model.hidden, config.count("word_embed_proj_dim", model.hidden)
    embedding = replace(model.embedding, width=width, position_width=hidden)
    head = replace(model.head, lm_head=replace(model.head.lm_head, in_features=width))
    if width != hidden:
        project_in = Linear(name="project_in", in_features=width, out_features=hidden, dtype=model.dtype)
        project_out = Linear(name="project_out", in_features=hidden, out_features=width, dtype=model.dtype)
        embedding, head = replace(embedding, project=project_in), replace(head, project=project_out)
    return replace(model, embedding=embedding, head=head)


_OPT = _layer_norm_gpt(
    defaults={"hidden_act": "relu", "enable_bias": True},
    constants={"layer_norm_elementwise_affine": True},
    bias="enable_bias",
    rope=nowhere,
    positions=OPT_POSITION_OFFSET,
    tied=True,
    finish=_opt_table,
)


def parse_opt(config: Config, dtype: Dtype) -> Model:
    """OPTForCausalLM: learned positions, biases, ReLU, tied head.

    The 350m differs: it normalises after each sum, has no final norm, and its table is narrower than its layers.
    """
    norm_first = config.flag("do_layer_norm_before", default=True)
    removed = config.flag("_remove_final_layer_norm", default=False)
    form = replace(_OPT, places=BEFORE if norm_first else ON_SUM, final_norm=norm_first and not removed)
    return form(config, dtype)


#: GPTJForCausalLM: attention and MLP in parallel after one LayerNorm; biases only in the MLP and the head.
GPTJ = _layer_norm_gpt(
    defaults={"hidden_act": "gelu_new", "rotary_dim": 64},
    constants={"rotary": True},
    rotated="rotary_dim",
    qkv_bias=False,
    out_bias=False,
    parallel=True,
    head_bias=True,
)


def _neox_rotation(model: Model, config: Config) -> Model:
    """The model that rotates the `rotary_pct` of each head."""
    head_dim = attention_of(model.layers[0]).head_dim
    factor = config.fraction("rotary_pct", 0.25)
    return with_attention(model, rotary_dim=rotary_dim(config, head_dim, factor=factor))


#: GPTNeoXForCausalLM (also Pythia): attention and MLP in parallel, each after its own LayerNorm; biases.
GPT_NEOX = _layer_norm_gpt(
    defaults={"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True},
    fused=True,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    parallel="use_parallel_residual",
    shared_norm=False,
    finish=_neox_rotation,
)
#: PhiForCausalLM: attention and MLP in parallel after one LayerNorm; half of each head rotated; biases.
PHI = _layer_norm_gpt(
    defaults={"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
    qk_norm=QkNorm.PER_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="qk_layernorm",
    parallel=True,
    head_bias=True,
)

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


#: GPTNeoForCausalLM: every other layer has a short window; no biases on q, k and v; learned positions.
GPT_NEO = _layer_norm_gpt(
    defaults=class_defaults("gpt_neo") | {"sliding_window": 256, "hidden_act": "gelu_new"},
    names={"window_size": "sliding_window"},
    ignored="embed_dropout",
    qkv_bias=False,
    types=neo_types,
    rope=nowhere,
    positions=0,
    tied=True,
)
#: CodeGenForCausalLM: GPT-J with one matrix for q, k and v.
CODEGEN = replace(
    GPTJ,
    defaults=class_defaults("codegen") | {"hidden_act": "gelu_new", "rotary_dim": 64},
    constants={},
    fused=True,
)
#: StableLmForCausalLM: a gated MLP, a quarter of each head rotated; the 12B is parallel and has QK-norm.
STABLELM = Decoder(
    defaults=class_defaults("stablelm") | {"partial_rotary_factor": 0.25},
    names={"rope_pct": "partial_rotary_factor"},
    ignored="rotary_scaling_factor",
    norm=layer_norm,
    bias=False,
    qkv_bias="use_qkv_bias",
    qk_norm=QkNorm.EACH_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="qk_layernorm",
    parallel="use_parallel_residual",
)
#: OlmoForCausalLM: LayerNorm without weights; q, k and v may be clamped.
OLMO = Decoder(defaults=class_defaults("olmo"), norm=bare_layer_norm, mlp_bias=False, clip="clip_qkv")
#: PersimmonForCausalLM: QK-norm with biases, half of each head rotated, squared ReLU.
PERSIMMON = _layer_norm_gpt(
    defaults=class_defaults("persimmon") | {"hidden_act": "relu2", "partial_rotary_factor": 0.5, "qk_layernorm": True},
    fused=True,
    qk_norm=QkNorm.PER_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="qk_layernorm",
)
#: BioGptForCausalLM: OPT's position table, scaled embeddings.
BIOGPT = _layer_norm_gpt(
    defaults=class_defaults("biogpt") | {"hidden_act": "gelu", "scale_embedding": True},
    rope=nowhere,
    positions=OPT_POSITION_OFFSET,
    scaled="scale_embedding",
    tied=True,
)
#: XGLMForCausalLM: BioGPT with computed positions, which are no parameters.
XGLM = replace(
    BIOGPT,
    defaults=class_defaults("xglm") | {"intermediate_size": 4096, "hidden_act": "gelu", "scale_embedding": True},
    positions=None,
)
#: CTRLLMHeadModel: GPT-2 with computed positions and a bias on the head.
CTRL = _layer_norm_gpt(
    defaults=class_defaults("ctrl") | {"intermediate_size": 8192, "hidden_act": "relu"},
    names={"dff": "intermediate_size"},
    rope=nowhere,
    scaled=True,
    tied=True,
    head_bias=True,
)
#: OpenAIGPTLMHeadModel (GPT-1): norms after the sums, no final norm.
OPENAI_GPT = _layer_norm_gpt(
    defaults=class_defaults("openai-gpt") | {"intermediate_size": 3072, "hidden_act": "gelu"},
    names={"afn": "hidden_act"},
    ignored="predict_special_tokens n_special",
    places=ON_SUM,
    fused=True,
    rope=nowhere,
    positions=0,
    final_norm=False,
    tied=True,
)
#: Jais2ForCausalLM: biases everywhere, squared ReLU.
JAIS2 = Decoder(
    defaults=class_defaults("jais2") | {"hidden_act": "relu2", "attention_bias": True, "mlp_bias": True},
    norm=layer_norm,
    gated=False,
)
