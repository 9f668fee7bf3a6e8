"""Granite 3."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.models.sizes import layer_count
from llmviewer.ops.norm import rms_norm


def parse(config: Config, dtype: Dtype) -> Model:
    """GraniteForCausalLM: Llama with factors on embeddings, branches and logits."""
    config.ignore("attention_multiplier")  # stands in for 1 / sqrt(head_dim)
    attention = parts.attention(config, dtype, parts.projections(config))
    layer = DecoderLayer(
        name="layer",
        repeats=layer_count(config),
        norms=parts.pre_norms(config, dtype),
        mixer=attention,
        feed_forward=parts.gated_mlp(config, dtype),
        residual_flops=1.0 + _factor(config, "residual_multiplier"),
    )
    plain = parts.model(config, dtype, (layer,), rms_norm("final_norm", attention.hidden, dtype))
    return replace(
        plain,
        embedding=replace(plain.embedding, scaled=bool(_factor(config, "embedding_multiplier"))),
        head=replace(plain.head, logit_flops=_factor(config, "logits_scaling")),
    )


def _factor(config: Config, name: str) -> float:
    """FLOP per element of a factor: 1, or 0 where it is 1."""
    return float(config.number(name, 1.0) != 1.0)
