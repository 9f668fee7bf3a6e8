"""Dense architectures with a part that no other has, around the form of `Dense`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Role, Tensor
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.attention_variants import DifferentialAttention, DynamicMaskAttention, varied
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.layers.prediction import Prediction
from llmviewer.models.config import Config
from llmviewer.models.dense import ON_SUM, Dense, nowhere, sizes
from llmviewer.models.fields import hidden_size, layer_count, layer_types
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import layer_norm

bare_bias_norm = partial(layer_norm, bias=False)


def _attention_of(layer: DecoderLayer) -> Attention:
    """The attention of a layer of `Dense`."""
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def _with_stored(built: Model, **elements: float) -> Model:
    """The model with weights that are stored and that no pass reads in full."""
    stored = tuple(
        Tensor(name=f"{name}.weight", elements=float(count), dtype=built.dtype, role=Role.WEIGHT)
        for name, count in elements.items()
    )
    return replace(built, embedding=replace(built.embedding, stored=stored))


#: GitForCausalLM: norms after the sums, BERT's biases; its image encoder is not run.
GIT = Dense(
    defaults={**sizes(768, 3072, 6, 12, 30522, 1024), "hidden_act": "gelu"},
    ignored="num_image_with_embedding",
    norm=layer_norm,
    places=ON_SUM,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    rope=nowhere,
    positions=0,
    embedding_norm=True,
    final_norm=False,
    head_bias=True,
    beside="image encoder",
)

_DIFFLLAMA = Dense(defaults=sizes(2048, 8192, 16, 32, 32000, 2048), ignored="lambda_std_dev", mlp_bias=False)


def parse_diffllama(config: Config, dtype: Dtype) -> Model:
    """DiffLlamaForCausalLM: Llama with differential attention."""
    built = _DIFFLLAMA(config, dtype)
    if _attention_of(built.layers[0]).kv_heads % 2:
        raise UserError(f"{config.where}: field 'num_key_value_heads' must be even for differential attention")
    layers = (replace(layer, mixer=varied(_attention_of(layer), DifferentialAttention)) for layer in built.layers)
    return replace(built, layers=tuple(layers))


_DOGE = Dense(
    defaults=sizes(1024, 2048, 32, 8, 32768, 2048),
    constants={"is_moe": False, "sliding_window": None},
    ignored="keep_window_size num_experts num_experts_per_tok",
    qk_norm=QkNorm.PER_HEAD,
)


def parse_doge(config: Config, dtype: Dtype) -> Model:
    """DogeForCausalLM without experts: attention with a dynamic mask, and learned weights of the residual stream."""
    built = _DOGE(config, dtype)
    layers = (
        replace(layer, mixer=varied(_attention_of(layer), DynamicMaskAttention), residual_weights=built.hidden)
        for layer in built.layers
    )
    return replace(built, layers=tuple(layers))


def _japanese_width(config: Config) -> None:
    config.defaults(intermediate_size=config.count("intermediate_multiple_size", 4) * config.count("hidden_size", 2560))


_NEOX_JAPANESE = Dense(
    defaults={**sizes(2560, None, 32, 32, 32000, 2048), "hidden_act": "gelu"},
    constants={"rotary_pct": 1.0},
    prepare=_japanese_width,
    norm=layer_norm,
    fused=True,
    qkv_bias=False,
    out_bias=False,
    gated=False,
    mlp_bias=False,
    tied=True,
)


def parse_gpt_neox_japanese(config: Config, dtype: Dtype) -> Model:
    """GPTNeoXJapaneseForCausalLM: only the last layer has a bias, on the output of its attention."""
    built, depth = _NEOX_JAPANESE(config, dtype), layer_count(config)
    first = replace(built.layers[0], repeats=depth - 1, numbers=tuple(range(depth - 1)))
    attention = _attention_of(first)
    biased = replace(attention, projections=replace(attention.projections, out_bias=True))
    last = replace(first, name="last", repeats=1, numbers=(depth - 1,), mixer=biased)
    return replace(built, layers=(first, last) if depth > 1 else (last,))


def bert_types(config: Config) -> list[str]:
    """Full attention in the first of every three layers."""
    period = config.count("global_attn_every_n_layers", 3)
    default = ["sliding" if layer % period else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("full", "sliding"), default)


def _half_window(config: Config) -> None:
    """The window is half of `local_attention`, as in the class."""
    config.fields = {**config.fields, "sliding_window": config.count("local_attention", 128, minimum=2) // 2}


_MODERNBERT = Dense(
    defaults={**sizes(768, 1152, 22, 12, 50368, 8192), "hidden_activation": "gelu", "decoder_bias": True},
    constants={"norm_bias": False},
    ignored="cls_token_id mlp_dropout global_rope_theta local_rope_theta",
    prepare=_half_window,
    norm=bare_bias_norm,
    types=bert_types,
    fused_mlp=True,
    embedding_norm=True,
    tied=True,
    head_bias="decoder_bias",
)


def parse_modernbert_decoder(config: Config, dtype: Dtype) -> Model:
    """ModernBertDecoderForCausalLM: no norm before the first attention, and BERT's prediction head."""
    built, hidden = _MODERNBERT(config, dtype), hidden_size(config)
    at = next(index for index, layer in enumerate(built.layers) if 0 in layer.numbers)
    kind = built.layers[at]
    first = replace(kind, name="first", repeats=1, numbers=(0,), norms=replace(kind.norms, attn=None))
    others = replace(kind, repeats=kind.repeats - 1, numbers=kind.numbers[1:])
    bias = config.flag("classifier_bias", default=False)
    head = Prediction(
        dense=Linear(name="prediction", in_features=hidden, out_features=hidden, dtype=dtype, bias=bias),
        activation=activation(config.text("classifier_activation", "gelu")),
        norm=bare_bias_norm("prediction_norm", hidden, dtype),
    )
    layers = (*built.layers[:at], first, *((others,) if others.repeats else ()), *built.layers[at + 1 :])
    return replace(built, layers=layers, head=replace(built.head, prediction=head))


_MLLAMA = Dense(
    defaults={**sizes(4096, 14336, 40, 32, 128256, 131072), "num_key_value_heads": 8},
    constants={"tie_word_embeddings": False},
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
)
#: Layers with cross attention by default, and rows of the embedding for images beyond the vocabulary.
MLLAMA_CROSS_LAYERS, MLLAMA_IMAGE_ROWS = (3, 8, 13, 18, 23, 28, 33, 38), 8


def parse_mllama(config: Config, dtype: Dtype) -> Model:
    """MllamaForCausalLM (Llama 3.2 Vision), a pass over text alone.

    Without an image the layers with cross attention are skipped; their weights are stored.
    """
    built, depth = _MLLAMA(config, dtype), layer_count(config)
    layer, attention = built.layers[0], _attention_of(built.layers[0])
    listed = config.numbers("cross_attention_layers", MLLAMA_CROSS_LAYERS)
    own = tuple(number for number in range(depth) if number not in listed)
    if not own:
        raise UserError(f"{config.where}: field 'cross_attention_layers' leaves no layer for text")
    hidden, width = attention.hidden, attention.heads * attention.head_dim
    matrices = 2 * hidden * (width + attention.kv_heads * attention.head_dim)
    matrices += 3 * hidden * config.count("intermediate_size")
    per_layer = matrices + 2 * hidden + 2 * attention.head_dim + 2  # norms, QK-norms, gates
    rows = built.embedding.vocabulary + MLLAMA_IMAGE_ROWS
    skipped = depth - len(own)
    text = replace(
        built,
        layers=(replace(layer, repeats=len(own), numbers=own),),
        embedding=replace(built.embedding, vocabulary=rows),
        notes=(*built.notes, f"{skipped} layers with cross attention are stored and skipped, as in a pass without images"),
    )
    return _with_stored(text, cross_attention=skipped * per_layer)


_CPMANT = Dense(
    defaults={**sizes(4096, 10240, 48, 32, 30720, 2048), "head_dim": 128, "hidden_act": "gelu"},
    names={"dim_head": "head_dim", "dim_ff": "intermediate_size"},
    ignored="eps dropout_p position_bias_max_distance mask_modules half",
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    rope=nowhere,
)


def parse_cpmant(config: Config, dtype: Dtype) -> Model:
    """CpmAntForCausalLM: a learned bias per distance on the scores; its embedding has rows for prompts.

    Its head is a matrix of its own whatever `tie_word_embeddings` says, since the embedding has more rows.
    The 32 prompt tokens that its code puts before a text are part of the prompt's length here.
    """
    built = _CPMANT(config, dtype)
    prompts = config.count("prompt_types", 32) * config.count("prompt_length", 32)
    segments = config.count("segment_types", 32)
    biases = (segments * segments + config.count("position_bias_num_buckets", 512)) * _attention_of(built.layers[0]).heads
    layers = (replace(layer, mixer=replace(_attention_of(layer), alibi=True)) for layer in built.layers)
    rows = built.embedding.vocabulary + prompts
    untied = replace(
        built,
        layers=tuple(layers),
        embedding=replace(built.embedding, vocabulary=rows),
        head=replace(built.head, tied=False),
    )
    return _with_stored(untied, segment_embedding=segments * built.hidden, position_bias=biases)
