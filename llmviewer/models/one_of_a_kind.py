"""Dense architectures with a part that no other has, around the form of `Dense`."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.attention_variants import DifferentialAttention, DynamicMaskAttention, varied
from llmviewer.models import parts
from llmviewer.models.config import Config, layer_count
from llmviewer.models.dense import ON_SUM, Dense, attention_of, sizes
from llmviewer.models.layer_patterns import nowhere
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm

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
    if attention_of(built.layers[0]).kv_heads % 2:
        raise UserError(f"{config.where}: field 'num_key_value_heads' must be even for differential attention")
    layers = (replace(layer, mixer=varied(attention_of(layer), DifferentialAttention)) for layer in built.layers)
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
        replace(layer, mixer=varied(attention_of(layer), DynamicMaskAttention), residual_weights=built.hidden)
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
    attention = attention_of(first)
    biased = replace(attention, projections=replace(attention.projections, out_bias=True))
    last = replace(first, name="last", repeats=1, numbers=(depth - 1,), mixer=biased)
    return replace(built, layers=(first, last) if depth > 1 else (last,))


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
    distances = segments * segments + config.count("position_bias_num_buckets", 512)
    biases = distances * attention_of(built.layers[0]).heads
    layers = (replace(layer, mixer=replace(attention_of(layer), alibi=True)) for layer in built.layers)
    rows = built.embedding.vocabulary + prompts
    untied = replace(
        built,
        layers=tuple(layers),
        embedding=replace(built.embedding, vocabulary=rows),
        head=replace(built.head, tied=False),
    )
    return parts.with_stored(untied, segment_embedding=segments * built.hidden, position_bias=biases)
