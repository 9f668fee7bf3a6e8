"""A declarative form for decoders with experts: attention, experts and the layers that have them, by field names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import FeedForward, Mixer, Norms
from llmviewer.models import parts
from llmviewer.models.config import Config
from llmviewer.models.experts import Experts, Placement, everywhere
from llmviewer.models.fields import hidden_size, layer_count, layer_types, window
from llmviewer.models.model import Model
from llmviewer.ops.norm import Norm, rms_norm


def all_full(config: Config) -> list[str]:
    """Full attention in every layer."""
    return layer_types(config, ("full",), ["full"] * layer_count(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQuery:
    """Grouped-query attention of a family: `full` layers, and `sliding` ones with the window `sliding_window`.

    bias: field that gives q, k and v biases.  out_bias: o_proj has one too.  head_dim: default of the class, 0 = none.
    unrotated: types without rope, if the model has a window; `full_nope` and `sliding_nope` never have it.
    """

    bias: str = "attention_bias"
    out_bias: bool = True
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_field: str = ""
    gate: bool = False
    sinks: bool = False
    head_dim: int = 0
    unrotated: tuple[str, ...] = ()

    def __call__(self, config: Config, dtype: Dtype) -> dict[str, Mixer]:
        """The attention of each type of layer."""
        full = self.full(config, dtype)
        mixers: dict[str, Mixer] = {}
        for name, mixer in (("full", full), ("sliding", replace(full, window=window(config)))):
            plain = replace(mixer, rotary_dim=0)
            mixers[f"{name}_nope"] = plain
            mixers[name] = plain if name in self.unrotated and config.has("sliding_window") else mixer
        return mixers

    def full(self, config: Config, dtype: Dtype) -> Attention:
        """The attention of `full` layers, with rope."""
        bias = config.flag(self.bias, default=False)
        projections = Projections(qkv_bias=bias, out_bias=bias and self.out_bias)
        normed = config.flag(self.qk_norm_field, default=False) if self.qk_norm_field else True
        plain = parts.attention(config, dtype, projections, head_dim=self.head_dim or None)
        qk_norm = self.qk_norm if normed else QkNorm.NONE
        return replace(plain, qk_norm=qk_norm, gate=self.gate, sinks=self.sinks)


#: Attention with QK-norm per head and 128 elements per head, as in Qwen3.
NORMED_128 = GroupedQuery(qk_norm=QkNorm.PER_HEAD, head_dim=128)


def unchanged(model: Model, config: Config) -> Model:
    """The model as it is."""
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseDecoder:
    """The parser of an architecture with experts; calling it reads a config.

    mixers: makes the attention for each type of layer.  types: the type of every layer.
    placement: `dense` or `moe` for every layer.  dense_width: field with the width of dense layers.
    defaults: the class's defaults of fields that published configs leave out.
    expected: field -> values that are supported.  ignored: fields that change no shape.
    finish: changes the finished model (factors on embeddings and residual sums).
    """

    mixers: Callable[[Config, Dtype], Mapping[str, Mixer]] = GroupedQuery()
    types: Callable[[Config], list[str]] = all_full
    experts: Callable[[Config, Dtype], FeedForward] = field(default_factory=Experts)
    placement: Placement = everywhere
    dense: Callable[[Config, Dtype], FeedForward] = parts.gated_mlp
    norms: Callable[[Config, Dtype], Norms] = parts.pre_norms
    final_norm: Callable[[Config, Dtype], Norm] = lambda config, dtype: rms_norm(
        "final_norm", hidden_size(config), dtype
    )
    defaults: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tied: bool = False
    prepare: Callable[[Config], None] = lambda config: None
    finish: Callable[[Model, Config], Model] = unchanged

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model that a config describes."""
        self.prepare(config)
        config.defaults(**self.defaults)
        for name, values in self.expected.items():
            config.expect(name, *values)
        config.ignore("sliding_window", "intermediate_size", *self.ignored)  # unused if no layer has them
        words = self.placement(config)
        build = {"dense": self.dense, "moe": self.experts}
        kinds = list(zip(self.types(config), words, strict=True))
        feed_forwards = {word: build[word](config, dtype) for word in set(words)}
        layers = parts.layers_by_kind(kinds, self.norms(config, dtype), self.mixers(config, dtype), feed_forwards)
        plain = parts.model(config, dtype, layers, self.final_norm(config, dtype), tied=self.tied)
        return self.finish(plain, config)
