"""SmolLM3."""

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
    """SmolLM3ForCausalLM: Llama whose every fourth layer has no rope."""
    config.expect("use_sliding_window", False)
    config.ignore("sliding_window", "max_window_layers")
    parts.layer_types(config, ("full",), ["full"] * layer_count(config))
    attention = parts.attention(config, dtype, parts.projections(config))
    mlp = parts.gated_mlp(config, dtype)
    kinds = [("rope" if rotated else "nope",) for rotated in parts.rotated_layers(config)]

    def layer(kind: tuple[str], times: int) -> DecoderLayer:
        return DecoderLayer(
            name=parts.block_name(kind, kinds),
            repeats=times,
            norms=parts.pre_norms(config, dtype),
            mixer=attention if kind == ("rope",) else replace(attention, rotary_dim=0),
            feed_forward=mlp,
        )

    norm = rms_norm("final_norm", attention.hidden, dtype)
    return parts.model(config, dtype, parts.grouped(kinds, layer), norm, tied=True)
