"""Pieces that most parsers share: embedding and head, layers grouped by kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from llmviewer.core.dtypes import Dtype, named
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Mixer, Norms, Residual
from llmviewer.layers.mlp import Mlp
from llmviewer.layers.moe import Moe
from llmviewer.models.config import Config
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.models.sizes import (
    head_count,
    head_size,
    hidden_size,
    kv_head_count,
    layer_count,
    max_context,
    rotary_dim,
)
from llmviewer.ops.elementwise import activation
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, rms_norm

Kind = TypeVar("Kind", bound=Hashable)


def grouped(kinds: Sequence[Kind], build: Callable[[Kind, int], DecoderLayer]) -> tuple[DecoderLayer, ...]:
    """One DecoderLayer per kind of layer, in order of first appearance, with how many layers are of that kind, and
    which."""
    numbers = {kind: tuple(at for at, other in enumerate(kinds) if other == kind) for kind in dict.fromkeys(kinds)}
    return tuple(replace(build(kind, len(at)), numbers=at) for kind, at in numbers.items())


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


def flagged(config: Config, name: str, words: tuple[str, str]) -> list[str]:
    """A list of 0 and 1 with one entry per layer, as words."""
    listed, layers = config.numbers(name), layer_count(config)
    if len(listed) < layers or not set(listed) <= {0, 1}:
        raise UserError(f"{config.where}: field '{name}' must list 0 or 1 for {layers} layers")
    return [words[flag] for flag in listed[:layers]]


def alternating(config: Config, period: int) -> list[str]:
    """`full` for every `period`-th layer and `sliding` for the others, unless the config lists or patterns them."""
    name = config.one_of("sliding_window_pattern", "_sliding_window_pattern")
    period = config.count(name, period)
    default = ["sliding" if (layer + 1) % period else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("sliding", "full"), default)


def rotated_layers(config: Config) -> list[bool]:
    """Which layers have rope (`no_rope_layers` holds 1 for those!): all but every `no_rope_layer_interval`-th."""
    depth, period = layer_count(config), config.count("no_rope_layer_interval", 4)
    flags = config.numbers("no_rope_layers") or [int((layer + 1) % period > 0) for layer in range(depth)]
    if len(flags) < depth or not set(flags) <= {0, 1}:
        raise UserError(f"{config.where}: field 'no_rope_layers' must list 0 or 1 for {depth} layers")
    return [flag == 1 for flag in flags[:depth]]


def projections(config: Config) -> Projections:
    """q, k, v and o apart, all with a bias where `attention_bias` says so."""
    bias = config.flag("attention_bias", default=False)
    return Projections(qkv_bias=bias, out_bias=bias)


def attention(config: Config, dtype: Dtype, projections: Projections, *, head_dim: int | None = None) -> Attention:
    """Grouped-query attention with rope, in the usual fields; `head_dim`: the class's default where it has its own."""
    size = head_size(config, head_dim)
    return Attention(
        hidden=hidden_size(config),
        heads=head_count(config),
        kv_heads=kv_head_count(config),
        head_dim=size,
        rotary_dim=rotary_dim(config, size),
        dtype=dtype,
        projections=projections,
    )


def mlp(config: Config, dtype: Dtype, intermediate: int) -> Mlp:
    """SwiGLU (or what `hidden_act` says) of `intermediate` elements, without biases."""
    act = activation(config.text(config.one_of("hidden_activation", "hidden_act"), "silu"))
    return Mlp(hidden=hidden_size(config), intermediate=intermediate, activation=act, dtype=dtype)


def gated_mlp(config: Config, dtype: Dtype) -> Mlp:
    """The same of `intermediate_size`, with biases where `mlp_bias` says so."""
    bias = config.flag("mlp_bias", default=False)
    return replace(mlp(config, dtype, config.count("intermediate_size")), bias=bias)


def plain_mlp(config: Config, dtype: Dtype, *, act: str) -> Mlp:
    """Two matrices with biases, four times as wide inside where the config is silent; `act`: the class's default."""
    hidden = hidden_size(config)
    width = config.one_of("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    name = config.text(config.one_of("hidden_act", "activation_function", "activation"), act)
    return Mlp(
        hidden=hidden,
        intermediate=config.count(width, 4 * hidden),
        activation=activation(name),
        dtype=dtype,
        gated=False,
        bias=True,
    )


def moe(config: Config, dtype: Dtype, intermediate: int) -> Moe:
    """Routed experts of `intermediate` elements each, in any of the usual spellings, and `n_shared_experts` alike."""
    shared = config.count("n_shared_experts", 0, least=0)
    experts = config.count(config.one_of("num_experts", "n_routed_experts", "num_local_experts"))
    return Moe(
        expert=mlp(config, dtype, intermediate),
        experts=experts,
        chosen=config.count("num_experts_per_tok", most=experts),
        dtype=dtype,
        hidden=hidden_size(config),
        shared=mlp(config, dtype, intermediate * shared) if shared else None,
    )


def pre_norms(config: Config, dtype: Dtype, norm: Callable[[str, float, Dtype], Norm] = rms_norm) -> Norms:
    """A norm before the mixer and one before the feed-forward part."""
    hidden = hidden_size(config)
    return Norms(attn=norm("attn_norm", hidden, dtype), mlp=norm("mlp_norm", hidden, dtype))


def sandwich_norms(config: Config, dtype: Dtype) -> Norms:
    """RMSNorms before and after the mixer, before and after the feed-forward part."""
    hidden = hidden_size(config)
    post = {name: rms_norm(f"{name}_norm", hidden, dtype) for name in ("attn_post", "mlp_post")}
    return replace(pre_norms(config, dtype), **post)


def alike(
    config: Config, norms: Norms, mixer: Mixer, feed_forward: FeedForward, residual: Residual = Residual.SEQUENTIAL
) -> tuple[DecoderLayer, ...]:
    """All layers of one kind."""
    layer = DecoderLayer(
        name="layer",
        repeats=layer_count(config),
        norms=norms,
        mixer=mixer,
        feed_forward=feed_forward,
        residual=residual,
    )
    return (layer,)


def by_kind(
    kinds: Sequence[tuple[str, str]],
    norms: Norms,
    mixers: Mapping[str, Mixer],
    feed_forwards: Mapping[str, FeedForward],
) -> tuple[DecoderLayer, ...]:
    """One DecoderLayer per pair (word of its mixer, word of its feed-forward part) that occurs in `kinds`."""

    def layer(kind: tuple[str, str], times: int) -> DecoderLayer:
        return DecoderLayer(
            name=block_name(kind, kinds),
            repeats=times,
            norms=norms,
            mixer=mixers[kind[0]],
            feed_forward=feed_forwards[kind[1]],
        )

    return grouped(kinds, layer)


def head(config: Config, dtype: Dtype, hidden: int, norm: Norm | None, *, tied: bool, bias: bool = False) -> Head:
    """Final norm and lm_head over the vocabulary; `tied`: the architecture's default where the config is silent."""
    vocabulary = config.count("vocab_size")
    linear = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype, bias=bias)
    return Head(lm_head=linear, tied=config.flag("tie_word_embeddings", default=tied), norm=norm)


def model(
    config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...], norm: Norm | None, *, tied: bool = False
) -> Model:
    """The usual frame: one table of `hidden_size`, layers, final norm, head without bias."""
    hidden = hidden_size(config)
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=Embedding(vocabulary=config.count("vocab_size"), width=hidden, dtype=dtype),
        layers=layers,
        head=head(config, dtype, hidden, norm, tied=tied),
        max_context=max_context(config),
    )


def biased_head(built: Model) -> Model:
    """The same model with a bias in its lm_head."""
    return replace(built, head=replace(built.head, lm_head=replace(built.head.lm_head, bias=True)))


def noting_state(built: Model, config: Config, name: str) -> Model:
    """A note where the field `name` wants the recurrent state wider than the model's dtype, in which it is counted."""
    wanted = config.get(name, built.dtype.name)
    if named(wanted).bits <= built.dtype.bits:
        return built
    return replace(built, notes=(*built.notes, f"{name} is {wanted}; the state is counted in {built.dtype.name}"))


def text_of(parse: Callable[[Config, Dtype], Model]) -> Callable[[Config, Dtype], Model]:
    """The parser of a multimodal config whose `text_config` is read by `parse`: the language model alone is counted."""

    def of_text(config: Config, dtype: Dtype) -> Model:
        text = config.part("text_config")
        if config.has("tie_word_embeddings"):
            text.defaults(tie_word_embeddings=config.get("tie_word_embeddings"))
        built = parse(text, dtype)
        return replace(built, notes=(*built.notes, "the language model alone is counted, not its vision or audio part"))

    return of_text
