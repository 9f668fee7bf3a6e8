"""RecurrentGemma (Griffin): two recurrent blocks per layer of local attention (arXiv 2404.07839)."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import Mixer
from llmviewer.layers.rg_lru import RgLru
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import head_count, hidden_size, layer_count
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.norm import rms_norm

#: Entries of `block_types`, which the layers repeat in turn.
BLOCKS = ("recurrent", "attention")


def parse_recurrent_gemma(config: Config, dtype: Dtype) -> Model:
    """RecurrentGemmaForCausalLM: an MLP half as wide as stated, scaled embeddings, capped logits, a tied head."""
    config.ignore("w_init_variance_scale", "final_w_init_variance_scale")  # training only
    config.expect("embeddings_scale_by_sqrt_dim", True)
    config.defaults(
        tie_word_embeddings=True,
        partial_rotary_factor=0.5,
        hidden_activation="gelu_pytorch_tanh",
        block_types=["recurrent", "recurrent", "attention"],
        num_key_value_heads=head_count(config),
    )
    mixers: dict[str, Mixer] = {"attention": _attention(config, dtype), "recurrent": _recurrent(config, dtype)}
    width = config.count("intermediate_size") // 2
    mlp = replace(parts.mlp(config, dtype, width), bias=True)
    kinds = [(word, "mlp") for word in _words(config)]
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, {"mlp": mlp})
    built = parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))
    capped = config.number("logits_soft_cap", 30.0) > 0
    return parts.with_logit_cap(replace(built, embedding=replace(built.embedding, scaled=True)), capped=capped)


def _words(config: Config) -> list[str]:
    """The mixer of every layer: the entries of `block_types`, from the first again when they end."""
    pattern = config.get("block_types")
    words = config.words("block_types", BLOCKS, len(pattern) if isinstance(pattern, list) else 1)
    if not words:
        raise UserError(f"{config.where}: field 'block_types' is empty")
    return [words[layer % len(words)] for layer in range(layer_count(config))]


def _attention(config: Config, dtype: Dtype) -> Attention:
    biases = Projections(qkv_bias=config.flag("attention_bias", default=False), out_bias=True)
    window = float(config.count("attention_window_size", 2048))
    return replace(parts.attention(config, dtype, biases), window=window)


def _recurrent(config: Config, dtype: Dtype) -> RgLru:
    width = config.count("lru_width", hidden_size(config))
    blocks = head_count(config)
    if width % blocks:
        raise UserError(f"{config.where}: lru_width {width} is not divisible by {blocks} heads")
    return RgLru(
        hidden=hidden_size(config),
        width=width,
        blocks=blocks,
        kernel=config.count("conv1d_width", 4),
        activation=activation(config.text("hidden_activation")),
        dtype=dtype,
    )
