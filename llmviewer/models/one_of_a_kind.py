"""Dense architectures with a part that no other has."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.attention_variants import DifferentialAttention, DynamicMaskAttention, varied
from llmviewer.models import parts
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config, layer_count
from llmviewer.models.decoder import Decoder, attention_of, sizes, with_attention
from llmviewer.models.layer_patterns import nowhere
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import layer_norm


def _differential(model: Model, config: Config) -> Model:
    if attention_of(model.layers[0]).kv_heads % 2:
        raise UserError(f"{config.where}: field 'num_key_value_heads' must be even for differential attention")
    layers = (replace(layer, mixer=varied(attention_of(layer), DifferentialAttention)) for layer in model.layers)
    return replace(model, layers=tuple(layers))


#: DiffLlamaForCausalLM: Llama with differential attention.
DIFFLLAMA = Decoder(
    defaults=class_defaults("diffllama"), ignored="lambda_std_dev", mlp_bias=False, finish=_differential
)


def _dynamic_mask(model: Model, config: Config) -> Model:
    layers = (
        replace(layer, mixer=varied(attention_of(layer), DynamicMaskAttention), residual_weights=model.hidden)
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))


#: DogeForCausalLM without experts: attention with a dynamic mask, and learned weights of the residual stream.
DOGE = Decoder(
    defaults=class_defaults("doge"),
    constants={"is_moe": False, "sliding_window": None},
    ignored="keep_window_size num_experts num_experts_per_tok",
    qk_norm=QkNorm.PER_HEAD,
    finish=_dynamic_mask,
)


def _japanese_width(config: Config) -> None:
    config.defaults(intermediate_size=config.count("intermediate_multiple_size", 4) * config.count("hidden_size", 2560))


def _biased_last(model: Model, config: Config) -> Model:
    depth = layer_count(config)
    first = replace(model.layers[0], repeats=depth - 1, numbers=tuple(range(depth - 1)))
    attention = attention_of(first)
    biased = replace(attention, projections=replace(attention.projections, out_bias=True))
    last = replace(first, name="last", repeats=1, numbers=(depth - 1,), mixer=biased)
    return replace(model, layers=(first, last) if depth > 1 else (last,))


#: GPTNeoXJapaneseForCausalLM: only the last layer has a bias, on the output of its attention.
GPT_NEOX_JAPANESE = Decoder(
    defaults=class_defaults("gpt_neox_japanese") | {"hidden_act": "gelu"},
    constants={"rotary_pct": 1.0},
    prepare=_japanese_width,
    norm=layer_norm,
    fused=True,
    bias=False,
    gated=False,
    tied=True,
    finish=_biased_last,
)


def _cpmant_tables(model: Model, config: Config) -> Model:
    """The model with a learned bias per distance on the scores, and rows for prompts in its embedding.

    Its head is a matrix of its own whatever `tie_word_embeddings` says, since the embedding has more rows.
    The 32 prompt tokens that its code puts before a text are part of the prompt's length here.
    """
    prompts = config.count("prompt_types", 32) * config.count("prompt_length", 32)
    segments = config.count("segment_types", 32)
    distances = segments * segments + config.count("position_bias_num_buckets", 512)
    untied = replace(
        with_attention(model, alibi=True),
        embedding=replace(model.embedding, vocabulary=model.embedding.vocabulary + prompts),
        head=replace(model.head, tied=False),
    )
    biases = distances * attention_of(model.layers[0]).heads
    return parts.with_stored(untied, segment_embedding=segments * model.hidden, position_bias=biases)


#: CpmAntForCausalLM: a table of prompts, and a bias per distance.
CPMANT = Decoder(
    defaults={**sizes(4096, 10240, 48, 32, 30720, 2048), "head_dim": 128, "hidden_act": "gelu"},
    names={"dim_head": "head_dim", "dim_ff": "intermediate_size"},
    ignored="eps dropout_p position_bias_max_distance mask_modules half",
    bias=False,
    rope=nowhere,
    finish=_cpmant_tables,
)
