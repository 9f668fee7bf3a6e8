"""Shapes from the graphs of real models: linear layers, experts, attention, recurrences, vision towers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmviewer import models
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode, prefill
from llmviewer.layers.feed_forward import Moe
from llmviewer.layers.linear_attention import GatedDeltaNet
from llmviewer.layers.mla import Mla
from llmviewer.layers.recurrent import Mamba2
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape


@dataclass(frozen=True, slots=True, order=True)
class LinearShape:
    """Shape of a linear layer y[m, n] = x[m, k] w[k, n]; experts: number of such matrices."""

    n: int
    k: int
    experts: int = 1


@dataclass(frozen=True, slots=True, order=True)
class Heads:
    """Attention heads: query heads, KV heads, elements per key and per value."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, order=True)
class ExpertLayer:
    """Routed experts of a layer: widths of a token and inside an expert, experts per token and in all."""

    hidden: int
    inter: int
    topk: int
    experts: int


@dataclass(frozen=True, slots=True, order=True)
class EncoderHeads:
    """Attention heads without grouping or mask: their number, and elements of each."""

    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, order=True)
class RecurrentHeads:
    """Heads of a linear recurrence: `mamba2` or `gated_delta`, their number, channels and state of each, and groups of
    heads that share keys and queries (B and C)."""

    op: str
    heads: int
    head_dim: int
    state: int
    groups: int


def recurrences(names: tuple[str, ...]) -> list[RecurrentHeads]:
    """Distinct recurrences of these models of the kinds that are measured."""
    mixers = (layer.mixer for name in names for layer in models.load(name).layers)
    return sorted({found for mixer in mixers for found in recurrent_heads(mixer)})


def recurrent_heads(mixer: object) -> Iterator[RecurrentHeads]:
    """Heads of a mixer with a recurrence that is measured; nothing for others."""
    if isinstance(mixer, Mamba2):
        yield RecurrentHeads("mamba2", mixer.heads, mixer.head_dim, mixer.state, mixer.groups)
    elif isinstance(mixer, GatedDeltaNet):
        yield RecurrentHeads("gated_delta", mixer.v_heads, mixer.v_dim, mixer.k_dim, mixer.k_heads)


def linears(names: tuple[str, ...]) -> list[LinearShape]:
    """Distinct shapes of the linear layers of these models."""
    return sorted({_linear(shape) for shape in _shapes(names, GemmShape) if shape.experts == 1})


def experts(names: tuple[str, ...]) -> list[LinearShape]:
    """Distinct shapes of the routed experts of these models."""
    return sorted({_linear(shape) for shape in _shapes(names, GemmShape) if shape.experts > 1})


def expert_layers(names: tuple[str, ...]) -> list[ExpertLayer]:
    """Distinct layers of routed experts of these models."""
    parts = (layer.feed_forward for name in names for layer in models.load(name).layers)
    found = {
        ExpertLayer(moe.latent or moe.hidden, moe.expert.intermediate, moe.chosen, moe.experts)
        for moe in parts
        if isinstance(moe, Moe)
    }
    return sorted(found)


def encoder_heads(names: tuple[str, ...]) -> list[EncoderHeads]:
    """Distinct attention heads of the vision towers of these models, as their config.json states them."""
    found = set()
    for name in names:
        tower = models.read(name).config["vision_config"]
        count = tower.get("num_attention_heads") or tower["num_heads"]
        found.add(EncoderHeads(count, tower["hidden_size"] // count))
    return sorted(found)


def heads(names: tuple[str, ...]) -> list[Heads]:
    """Distinct attention heads of these models whose keys and values have the same width."""
    found = {_heads(shape) for shape in _shapes(names, AttentionShape) if shape.qk_dim == shape.v_dim}
    return sorted(found)


def latent_heads(names: tuple[str, ...]) -> tuple[list[Heads], list[Heads]]:
    """Latent-attention heads of these models: expanded form, absorbed form."""
    expanded: set[Heads] = set()
    absorbed: set[Heads] = set()
    for mixer in (layer.mixer for name in names for layer in models.load(name).layers):
        if isinstance(mixer, Mla):
            qk = mixer.nope_dim + mixer.rope_dim
            expanded.add(Heads(mixer.heads, mixer.heads, qk, mixer.v_dim))
            absorbed.add(Heads(mixer.heads, 1, mixer.kv_rank + mixer.rope_dim, mixer.kv_rank))
    return sorted(expanded), sorted(absorbed)


def _shapes(names: tuple[str, ...], kind: type[Any]) -> Iterator[Any]:
    for name in names:
        model = models.load(name)
        for step in (prefill(1.0, 2.0), decode(1.0, 1.0)):
            for _, operator in model.graph(step):
                if operator.kind in (Kind.GEMM, Kind.ATTENTION) and isinstance(operator.shape, kind):
                    yield operator.shape


def _linear(shape: GemmShape) -> LinearShape:
    return LinearShape(int(shape.n), int(shape.k), int(shape.experts))


def _heads(shape: AttentionShape) -> Heads:
    return Heads(int(shape.heads), int(float(shape.kv_heads)), int(float(shape.qk_dim)), int(float(shape.v_dim)))
