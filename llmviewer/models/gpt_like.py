"""Dense architectures with LayerNorm: GPT-Neo, CodeGen, StableLM, OLMo, Persimmon and older ones."""

from __future__ import annotations

from functools import partial

from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.models.config import Config
from llmviewer.models.dense import ON_SUM, Dense, sizes
from llmviewer.models.fields import layer_count
from llmviewer.models.layer_patterns import nowhere
from llmviewer.ops.norm import NormKind, bare_layer_norm, layer_norm

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
