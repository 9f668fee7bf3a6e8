"""Pieces that most parsers share: embedding and head, layers grouped by kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from llmviewer.dtypes import Dtype
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.models.config import Config
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, rms_norm

Kind = TypeVar("Kind", bound=Hashable)


def grouped(kinds: Sequence[Kind], build: Callable[[Kind, int], DecoderLayer]) -> tuple[DecoderLayer, ...]:
    """One DecoderLayer per kind of layer, in order of first appearance, with how many layers are of that kind."""
    counted = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return tuple(build(kind, times) for kind, times in counted.items())


def block_name(kind: tuple[str, ...], kinds: Sequence[tuple[str, ...]]) -> str:
    """The words of `kind` by which the layers of the model differ (`full_moe`); `layer` where all are alike."""
    differing = (word for word, words in zip(kind, zip(*kinds, strict=True), strict=True) if len(set(words)) > 1)
    return "_".join(differing) or "layer"


def layer_types(config: Config, allowed: tuple[str, ...], default: Sequence[str]) -> list[str]:
    """One of `allowed` (`full`, `sliding`, `linear`) for every layer: `layer_types`, or the class's own rule."""
    if not config.has("layer_types"):
        return list(default)
    words = config.words("layer_types", tuple(f"{word}_attention" for word in allowed), len(default))
    return [word.removesuffix("_attention") for word in words]


def rotary_dim(config: Config, head_dim: int, *, factor: float = 1.0) -> int:
    """Rotated elements per head: `partial_rotary_factor` of them, beside or inside `rope_parameters`."""
    rope = config.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return int(head_dim * config.number("partial_rotary_factor", inner or factor))


def attention(config: Config, dtype: Dtype, projections: Projections, *, head_dim: int | None = None) -> Attention:
    """Grouped-query attention with rope, in the usual fields; `head_dim`: the class's default where it has its own."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    head_dim = config.count("head_dim", head_dim or hidden // heads)
    return Attention(
        hidden=hidden,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=head_dim,
        rotary_dim=rotary_dim(config, head_dim),
        dtype=dtype,
        projections=projections,
    )


def mlp(config: Config, dtype: Dtype, intermediate: int) -> Mlp:
    """SwiGLU (or what `hidden_act` says) of `intermediate` elements, without biases."""
    act = activation(config.text("hidden_act", "silu"))
    return Mlp(hidden=config.count("hidden_size"), intermediate=intermediate, activation=act, dtype=dtype)


def moe(config: Config, dtype: Dtype, intermediate: int) -> Moe:
    """Routed experts of `intermediate` elements each, in any of the usual spellings."""
    return Moe(
        expert=mlp(config, dtype, intermediate),
        experts=config.count(config.one_of("num_experts", "n_routed_experts", "num_local_experts")),
        chosen=config.count("num_experts_per_tok"),
        dtype=dtype,
        hidden=config.count("hidden_size"),
    )


def pre_norms(config: Config, dtype: Dtype) -> Norms:
    """RMSNorm before the mixer and before the feed-forward part."""
    hidden = config.count("hidden_size")
    return Norms(attn=rms_norm("attn_norm", hidden, dtype), mlp=rms_norm("mlp_norm", hidden, dtype))


def head(config: Config, dtype: Dtype, hidden: int, norm: Norm | None, *, tied: bool, bias: bool = False) -> Head:
    """Final norm and lm_head over the vocabulary; `tied`: the architecture's default where the config is silent."""
    vocabulary = config.count("vocab_size")
    linear = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype, bias=bias)
    return Head(lm_head=linear, tied=config.flag("tie_word_embeddings", default=tied), norm=norm)


def model(
    config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...], norm: Norm | None, *, tied: bool = False
) -> Model:
    """The usual frame: one table of `hidden_size`, layers, final norm, head without bias."""
    hidden = config.count("hidden_size")
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=Embedding(vocabulary=config.count("vocab_size"), width=hidden, dtype=dtype),
        layers=layers,
        head=head(config, dtype, hidden, norm, tied=tied),
        max_context=float(config.count("max_position_embeddings", ABSENT_CONTEXT)),
    )


#: A config that states no maximum context has none.
ABSENT_CONTEXT = 10**8
