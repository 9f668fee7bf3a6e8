"""Jamba: one attention layer per seven Mamba layers, experts in every other layer (arXiv 2403.19887)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Projections
from llmviewer.layers.decoder import FeedForward, Mixer
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.fields import hidden_size, layer_count
from llmviewer.models.mamba import prefixed_mamba
from llmviewer.models.model import Model
from llmviewer.ops.norm import rms_norm


def parse_jamba(config: Config, dtype: Dtype) -> Model:
    """JambaForCausalLM: Mamba-1 with norms on time steps, B and C; attention without rope."""
    config.expect("sliding_window", None)
    config.ignore("use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep")
    attention = replace(parts.attention(config, dtype, Projections()), rotary_dim=0)
    mamba = replace(prefixed_mamba(config, dtype), inner_norms=True)
    mixers: dict[str, Mixer] = {"attention": attention, "mamba": mamba}
    mixing, ffn = _periodic(config, "attn", ("attention", "mamba")), _periodic(config, "expert", ("moe", "dense"))
    if config.count("num_experts", 16) == 1:
        ffn = ["dense"] * len(ffn)
    kinds = list(zip(mixing, ffn, strict=True))
    layers = parts.layers_by_kind(kinds, parts.pre_norms(config, dtype), mixers, _feed_forwards(config, dtype, ffn))
    return parts.model(config, dtype, layers, rms_norm("final_norm", hidden_size(config), dtype))


def _feed_forwards(config: Config, dtype: Dtype, words: Sequence[str]) -> dict[str, FeedForward]:
    """The feed-forward part for each of `words`; experts are as wide as dense MLPs."""
    config.ignore("num_experts_per_tok")  # unused if no layer has experts
    build: dict[str, Callable[[Config, Dtype, int], FeedForward]] = {"dense": parts.mlp, "moe": parts.moe}
    return {word: build[word](config, dtype, config.count("intermediate_size")) for word in set(words)}


def _periodic(config: Config, prefix: str, words: tuple[str, str]) -> list[str]:
    """For every layer the first word if layer mod period equals the offset, else the second."""
    period = config.count(f"{prefix}_layer_period")
    offset = config.count(f"{prefix}_layer_offset", minimum=0)
    return [words[0] if layer % period == offset else words[1] for layer in range(layer_count(config))]
