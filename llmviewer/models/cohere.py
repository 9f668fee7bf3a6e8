"""Command-R, Command-R+, Command-R7B and Cohere's model of text and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config, hidden_size, layer_count, layer_types, sliding_or_full, window
from llmviewer.models.dense import Dense, sizes
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import NormKind, layer_norm

#: LayerNorm without bias.
cohere_norm = partial(layer_norm, bias=False)


def parse_cohere(config: Config, dtype: Dtype) -> Model:
    """CohereForCausalLM: attention and SwiGLU in parallel after one LayerNorm; QK-norm with weights per head."""
    attention = _attention(config, dtype)
    mlp = parts.gated_mlp(config, dtype)
    layers = parts.uniform_layers(config, _norms(config, dtype), attention, mlp, Residual.PARALLEL)
    return _model(config, dtype, layers)


def _attention(config: Config, dtype: Dtype) -> Attention:
    """Attention with a LayerNorm over each query and key head where the config asks for it (Command-R+)."""
    plain = parts.attention(config, dtype, parts.projections(config))
    if not config.flag("use_qk_norm", default=False):
        return plain
    return replace(plain, qk_norm=QkNorm.EACH_HEAD, norm_kind=NormKind.LAYER)


def parse_cohere2(config: Config, dtype: Dtype) -> Model:
    """Cohere2ForCausalLM: three layers with a sliding window and rope, then one with full attention and no rope."""
    _expect_constants(config)
    attention = _attention(config, dtype)
    variants = {
        "sliding": replace(attention, window=window(config)),
        "full": replace(attention, rotary_dim=0),
    }
    mlp = parts.gated_mlp(config, dtype)

    def layer(kind: str, repeats: int) -> DecoderLayer:
        return DecoderLayer(
            name=kind,
            repeats=repeats,
            norms=_norms(config, dtype),
            mixer=variants[kind],
            feed_forward=mlp,
            residual=Residual.PARALLEL,
        )

    return _model(config, dtype, parts.group_layers(sliding_or_full(config, 4), layer))


def _expect_constants(config: Config) -> None:
    """Check fields of the published Command-R7B config whose values the class hard-codes."""
    config.defaults(sliding_window=4096)
    config.expect("layer_switch", config.get("sliding_window_pattern", 4))
    config.expect("order_of_interleaved_layers", "local_attn_first")
    config.expect("position_embedding_type", "rope_gptj")
    config.expect("rotary_pct", 1.0)
    config.expect("use_gated_activation", True)
    config.expect("use_parallel_block", True)
    config.expect("use_embedding_sharing", True)
    config.ignore("use_parallel_embedding")  # sharding of the table


def _norms(config: Config, dtype: Dtype) -> Norms:
    return Norms(attn=cohere_norm("attn_norm", hidden_size(config), dtype))


def _model(config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...]) -> Model:
    plain = parts.model(config, dtype, layers, cohere_norm("final_norm", hidden_size(config), dtype), tied=True)
    scaled = float(config.number("logit_scale", 0.0625) != 1.0)
    return replace(plain, head=replace(plain.head, logit_flops=scaled))


def _typed_layers(config: Config) -> list[str]:
    return layer_types(config, ("full", "sliding"), ["full"] * layer_count(config))


def _layers_with_rope(config: Config, types: Sequence[str]) -> list[bool]:
    """Rope in the layers whose type has parameters in `rope_parameters`; null means none."""
    rope = config.get("rope_parameters", {})
    return [not (isinstance(rope, dict) and rope.get(f"{word}_attention", rope) is None) for word in types]


#: CohereCompassForCausalLM: Cohere's parallel layers; the config lists which layers have a window and which have rope.
COHERE_COMPASS = Dense(
    defaults={**sizes(8192, 22528, 40, 64, 256000, 8192), "sliding_window": 4096},
    names={"logit_scale": "logits_scaling"},
    constants={"pooling": None},
    norm=cohere_norm,
    parallel=True,
    types=_typed_layers,
    rope=_layers_with_rope,
    mlp_bias=False,
    tied=True,
    factors=True,
)
