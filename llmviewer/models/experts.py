"""Mixtures of experts by the names of their fields, and the layers that have them."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.layers.feed_forward import Moe
from llmviewer.models import parts
from llmviewer.models.config import Config, hidden_size, layer_count

#: Names of the two feed-forward parts in `mlp_layer_types`, and ours.
LAYER_WORDS = {"dense": "dense", "sparse": "moe", "moe": "moe", "hash_moe": "moe"}


@frozen
class Experts:
    """Field names of routed and shared experts.

    experts, chosen: fields with the numbers; the first one present counts.  width: field with the size of one expert.
    shared: field with the number of shared experts of the same width, empty = none.
    shared_width: field with the width of the shared expert instead.  shared_gate: a sigmoid scales its output.
    identities: field with the number of experts without weights.
    shared_bias: field that gives the shared expert biases.
    correction_bias, correction_weight: values added to the router's scores for selection, stored as buffer or weight.
    """

    experts: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts")
    chosen: tuple[str, ...] = ("num_experts_per_tok",)
    width: str = "moe_intermediate_size"
    shared: str = "n_shared_experts"
    shared_width: str = ""
    shared_gate: bool = False
    shared_bias: str = ""
    router_bias: bool = False
    identities: str = ""
    correction_bias: bool = False
    correction_weight: bool = False

    def __call__(self, config: Config, dtype: Dtype) -> Moe:
        """The experts of one layer."""
        width = config.count(self.width)
        count = config.count(config.first_present(*self.experts))
        bias = bool(self.shared_bias) and config.flag(self.shared_bias, default=False)
        stated = self.shared_width or self.shared
        shared = config.count(stated, 0, minimum=0) * (1 if self.shared_width else width) if stated else 0
        identities = config.count(self.identities, 0, minimum=0) if self.identities else 0
        return Moe(
            expert=parts.mlp(config, dtype, width),
            experts=count,
            chosen=config.count(config.first_present(*self.chosen), maximum=count + identities),
            dtype=dtype,
            hidden=hidden_size(config),
            shared=replace(parts.mlp(config, dtype, shared), bias=bias) if shared else None,
            shared_gate=self.shared_gate and bool(shared),
            router_bias=self.router_bias,
            identities=identities,
            correction_bias=self.correction_bias,
            correction_weight=self.correction_weight,
        )


def everywhere(config: Config) -> list[str]:
    """Experts in every layer."""
    return ["moe"] * layer_count(config)


@frozen(kw_only=False)
class DenseFirst:
    """The first layers are dense, as many as the `field` says (`default` if missing); `mlp_layer_types` goes before."""

    field: str = "first_k_dense_replace"
    default: int | None = None

    def __call__(self, config: Config) -> list[str]:
        """The feed-forward part of every layer."""
        depth = layer_count(config)
        dense = config.count(self.field, self.default, minimum=0)
        return listed(config, ["dense" if layer < dense else "moe" for layer in range(depth)])


def listed(config: Config, default: list[str]) -> list[str]:
    """The feed-forward part of every layer as `mlp_layer_types` lists them, else the class's default."""
    if not config.has("mlp_layer_types"):
        return default
    words = config.words("mlp_layer_types", LAYER_WORDS, len(default))
    return [LAYER_WORDS[word] for word in words]


def listed_or_first_dense(config: Config) -> list[str]:
    """The layers of `mlp_layer_types`; without the field all but the first have experts."""
    return listed(config, ["dense", *["moe"] * (layer_count(config) - 1)])


def listed_or_everywhere(config: Config) -> list[str]:
    """The layers of `mlp_layer_types`; without the field all have experts."""
    return listed(config, everywhere(config))


def from_start_to_end(config: Config) -> list[str]:
    """ERNIE 4.5: every `moe_layer_interval`-th layer from `moe_layer_start_index` to `moe_layer_end_index`."""
    depth, every = layer_count(config), config.count("moe_layer_interval", 1)
    first = config.count("moe_layer_start_index", 1, minimum=0)
    last = config.count("moe_layer_end_index", -1, minimum=-1)
    last = depth - 1 if last == -1 else last
    return ["moe" if first <= layer <= last and not (layer + 1) % every else "dense" for layer in range(depth)]


def same_in_every_layer(config: Config, *names: str) -> None:
    """Replace lists with one number per layer by that number; UserError if the layers differ."""
    for name in names:
        value = config.fields.get(name)
        if isinstance(value, list) and value:
            if len(set(map(str, value))) > 1:
                raise UserError(f"{config.where}: field '{name}' differs between layers, which is not supported")
            config.fields = {**config.fields, name: value[0]}


def sparse_layers(config: Config) -> list[str]:
    """`moe` for every `decoder_sparse_step`-th layer unless `mlp_only_layers` lists it, else `dense`."""
    step, dense = config.count("decoder_sparse_step", 1), config.numbers("mlp_only_layers")
    return ["dense" if layer in dense or (layer + 1) % step else "moe" for layer in range(layer_count(config))]
