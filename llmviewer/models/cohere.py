"""Command-R, Command-R+, Command-R7B, Command-A with experts, and Cohere's model of text and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.models import parts
from llmviewer.models.class_defaults import class_defaults
from llmviewer.models.config import Config, layer_count, layer_types, sliding_or_full
from llmviewer.models.decoder import Decoder
from llmviewer.models.experts import DenseFirst, Experts
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import NormKind, layer_norm, rms_norm

#: LayerNorm without bias.
cohere_norm = partial(layer_norm, bias=False)


def _scaled_logits(model: Model, config: Config) -> Model:
    """The model with scaled logits."""
    scaled = float(config.number("logit_scale", 0.0625) != 1.0)
    return replace(model, head=replace(model.head, logit_flops=scaled))


#: CohereForCausalLM: attention and SwiGLU in parallel after one LayerNorm; QK-norm with weights per head (Command-R+).
COHERE = Decoder(
    norm=cohere_norm,
    qk_norm=QkNorm.EACH_HEAD,
    qk_norm_kind=NormKind.LAYER,
    qk_norm_if="use_qk_norm",
    parallel=True,
    tied=True,
    finish=_scaled_logits,
)


def _hard_coded(config: Config) -> None:
    config.expect("layer_switch", config.get("sliding_window_pattern", 4))


#: Cohere2ForCausalLM: three layers with a sliding window and rope, then one with full attention and no rope.
COHERE2 = replace(
    COHERE,
    defaults={"sliding_window": 4096},
    constants={
        **{
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
        },
        **dict.fromkeys(("use_gated_activation", "use_parallel_block", "use_embedding_sharing"), True),
    },
    ignored="use_parallel_embedding",  # sharding of the table
    prepare=_hard_coded,
    types=partial(sliding_or_full, period=4),
    unrotated=("full",),
)


def _layers_with_rope(config: Config, types: Sequence[str]) -> list[bool]:
    """Rope in the layers whose type has parameters in `rope_parameters`; null means none."""
    rope = config.get("rope_parameters", {})
    return [not (isinstance(rope, dict) and rope.get(f"{word}_attention", rope) is None) for word in types]


#: CohereCompassForCausalLM: Cohere's parallel layers; the config lists which layers have a window and which have rope.
COHERE_COMPASS = Decoder(
    defaults=class_defaults("cohere_compass_text") | {"sliding_window": 4096},
    names={"logit_scale": "logits_scaling"},
    constants={"pooling": None},
    norm=cohere_norm,
    parallel=True,
    types=lambda config: layer_types(config, ("full", "sliding"), ["full"] * layer_count(config)),
    rope=_layers_with_rope,
    mlp_bias=False,
    tied=True,
    factors=True,
)


def _types_behind_dense(config: Config) -> list[str]:
    """Every `sliding_window_pattern`-th layer after the dense ones is full and has no rope; dense ones have it."""
    dense = config.count("first_k_dense_replace", 0, minimum=0)
    first, period = (config.count(f"{name}sliding_window_pattern", at) for name, at in (("prefix_dense_", 1), ("", 4)))
    rule = ["sliding" if (at + 1) % first else "full" for at in range(dense)]
    rule += ["sliding" if (at + 1) % period else "full" for at in range(layer_count(config) - dense)]
    types, words = layer_types(config, ("sliding", "full"), rule), DenseFirst(default=0)(config)
    rotated = [word == "dense" and first == 1 for word in words]
    return [name if name == "sliding" or turns else "full_nope" for name, turns in zip(types, rotated, strict=True)]


_COHERE2_MOE = Decoder(
    defaults={"sliding_window": 4096},
    constants={"expert_selection_fn": ("softmax", "sigmoid")},
    ignored="shared_expert_combination_strategy prefix_dense_intermediate_size",
    head_dim=128,
    types=_types_behind_dense,
    experts=Experts(width="intermediate_size", shared="num_shared_experts"),
    placement=DenseFirst(default=0),
    dense=lambda config, dtype: parts.mlp(
        config, dtype, config.count(config.first_present("prefix_dense_intermediate_size", "intermediate_size"))
    ),
    parallel=True,
    tied=True,
    finish=_scaled_logits,
)


def parse_cohere2_moe(config: Config, dtype: Dtype) -> Model:
    """Cohere2MoeForCausalLM: RMSNorm if `rms_norm_eps` is set, else LayerNorm without bias."""
    return replace(_COHERE2_MOE, norm=rms_norm if config.has("rms_norm_eps") else cohere_norm)(config, dtype)
