"""Decoders with experts and windows in most layers, one entry each: which layers see all tokens, and their norms."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import QkNorm
from llmviewer.layers.decoder import Norms, Residual
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.experts import DenseFirst, Experts, listed_or_everywhere
from llmviewer.models.fields import head_count, hidden_size, layer_count, layer_types
from llmviewer.models.layer_patterns import FullEvery
from llmviewer.models.model import Model
from llmviewer.models.qwen import sparse_layers
from llmviewer.models.sparse_decoder import NORMED_128, GroupedQuery, SparseDecoder
from llmviewer.ops.norm import Norm, layer_norm, rms_norm


def _exaone_types(config: Config) -> list[str]:
    """The layers as `layer_types` lists them, or by `sliding_window_pattern`: a number, or letters such as `LLLG`."""
    pattern = config.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        depth = layer_count(config)
        words = ["full" if pattern[at % len(pattern)] == "G" else "sliding" for at in range(depth)]
        return layer_types(config, ("sliding", "full"), [*words[:-1], "full"])
    return FullEvery("sliding_window_pattern", 4)(config)


exaone_moe = SparseDecoder(
    mixers=GroupedQuery(qk_norm=QkNorm.PER_HEAD, unrotated=("full",)),
    types=_exaone_types,
    experts=Experts(shared="num_shared_experts", correction_bias=True),
    placement=DenseFirst(default=1),
    ignored=("is_moe_layer", "rope_interleave"),
)


def _flint_types(config: Config) -> list[str]:
    """Full attention in the first two layers, the last, and every fourth from the second."""
    last = layer_count(config) - 1
    full = [at < 2 or at % 4 == 1 or at == last for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), ["full" if yes else "sliding" for yes in full])


flint = SparseDecoder(
    mixers=replace(NORMED_128, sinks=True, unrotated=("full",)),
    types=_flint_types,
    experts=Experts(shared_width="shared_expert_intermediate_size"),
    placement=sparse_layers,
    defaults={"sliding_window": 513, "mlp_only_layers": [0, 1]},
)

kolibri1 = SparseDecoder(
    mixers=replace(NORMED_128, unrotated=("full",)),
    types=FullEvery("", 5),
    experts=Experts(shared_width="shared_expert_intermediate_size", correction_bias=True),
    norms=parts.sandwich_norms,
    defaults={"sliding_window": 513},
)

mellum = SparseDecoder(
    mixers=NORMED_128,
    types=lambda config: layer_types(config, ("sliding", "full"), ["full"] * layer_count(config)),
    experts=Experts(shared=""),
    placement=listed_or_everywhere,
    ignored=("mtp_layer_types", "mtp_mlp_layer_types"),
)


def _afmoe_scale(model: Model, config: Config) -> Model:
    """The model with scaled embeddings if `mup_enabled` is set."""
    scaled = config.flag("mup_enabled", default=False)
    return replace(model, embedding=replace(model.embedding, scaled=scaled))


afmoe = SparseDecoder(
    mixers=replace(NORMED_128, gate=True, unrotated=("full",)),
    types=FullEvery("global_attn_every_n_layers", 4),
    experts=Experts(shared="num_shared_experts", correction_weight=True),
    placement=DenseFirst("num_dense_layers", 1),
    norms=parts.sandwich_norms,
    defaults={"sliding_window": 1024},
    expected={"score_func": ("sigmoid",)},
    ignored=(
        "global_attn_every_n_layers", "route_scale", "route_norm", "load_balance_coeff", "num_expert_groups",
        "num_limited_groups", "use_grouped_mm",
    ),
    finish=_afmoe_scale,
)  # fmt: skip


def _cohere_norm(config: Config, name: str, dtype: Dtype) -> Norm:
    """RMSNorm if `rms_norm_eps` is set, else LayerNorm without bias."""
    kind = rms_norm if config.has("rms_norm_eps") else partial(layer_norm, bias=False)
    return kind(name, hidden_size(config), dtype)


def _cohere_types(config: Config) -> list[str]:
    """Every `sliding_window_pattern`-th layer after the dense ones is full and has no rope; dense ones have it."""
    dense = config.count("first_k_dense_replace", 0, minimum=0)
    first, period = (config.count(f"{name}sliding_window_pattern", at) for name, at in (("prefix_dense_", 1), ("", 4)))
    rule = ["sliding" if (at + 1) % first else "full" for at in range(dense)]
    rule += ["sliding" if (at + 1) % period else "full" for at in range(layer_count(config) - dense)]
    types, words = layer_types(config, ("sliding", "full"), rule), DenseFirst(default=0)(config)
    rotated = [word == "dense" and first == 1 for word in words]
    return [name if name == "sliding" or turns else "full_nope" for name, turns in zip(types, rotated, strict=True)]


def _cohere_finish(model: Model, config: Config) -> Model:
    """The model with attention and experts in parallel, and scaled logits."""
    layers = tuple(replace(layer, residual=Residual.PARALLEL) for layer in model.layers)
    scaled = float(config.number("logit_scale", 0.0625) != 1.0)
    return replace(model, layers=layers, head=replace(model.head, logit_flops=scaled))


cohere2_moe = SparseDecoder(
    mixers=GroupedQuery(head_dim=128),
    types=_cohere_types,
    experts=Experts(width="intermediate_size", shared="num_shared_experts"),
    placement=DenseFirst(default=0),
    dense=lambda config, dtype: parts.mlp(
        config, dtype, config.count(config.first_present("prefix_dense_intermediate_size", "intermediate_size"))
    ),
    norms=lambda config, dtype: Norms(attn=_cohere_norm(config, "attn_norm", dtype)),
    final_norm=lambda config, dtype: _cohere_norm(config, "final_norm", dtype),
    defaults={"sliding_window": 4096},
    expected={"expert_selection_fn": ("softmax", "sigmoid")},
    ignored=("shared_expert_combination_strategy", "prefix_dense_intermediate_size"),
    tied=True,
    finish=_cohere_finish,
)


def _every_sixth_and_last(config: Config) -> list[str]:
    """Full attention in every sixth layer and in the last."""
    last = layer_count(config) - 1
    default = ["full" if at % 6 == 5 or at == last else "sliding" for at in range(last + 1)]
    return layer_types(config, ("sliding", "full"), default)


def _beam_finish(model: Model, config: Config) -> Model:
    """The model with a bias per head of the attention gates, and capped logits."""
    capped = parts.with_logit_cap(model, capped=config.has("final_logit_softcapping"))
    return parts.with_stored(capped, gate_bias=layer_count(config) * head_count(config))


beam = SparseDecoder(
    mixers=replace(NORMED_128, gate=True, unrotated=("full",)),
    types=_every_sixth_and_last,
    experts=Experts(shared="", correction_bias=True),
    placement=DenseFirst(default=3),
    norms=parts.sandwich_norms,
    defaults={
        **{"sliding_window": 512, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2560},
        "final_logit_softcapping": 30.0,
    },
    finish=_beam_finish,
)
