"""ModernBERT as a decoder (Ettin): short windows, and the prediction head of BERT."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.mlp import Prediction
from llmviewer.models.config import Config
from llmviewer.models.dense import Dense, sizes
from llmviewer.models.fields import hidden_size, layer_count, layer_types
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import layer_norm

#: LayerNorm without bias.
weight_norm = partial(layer_norm, bias=False)


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
    norm=weight_norm,
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
        norm=weight_norm("prediction_norm", hidden, dtype),
    )
    layers = (*built.layers[:at], first, *((others,) if others.repeats else ()), *built.layers[at + 1 :])
    return replace(built, layers=layers, head=replace(built.head, prediction=head))
