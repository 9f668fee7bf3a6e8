"""Parts that most parsers share: attention, MLP, experts, norms, layers grouped by kind, embedding and head."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from llmviewer.core.dtypes import Dtype, get_dtype
from llmviewer.core.ir import Role, Tensor
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, Norms
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models.config import (
    Config,
    head_count,
    head_size,
    hidden_size,
    kv_head_count,
    max_context,
    rotary_dim,
)
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.models.vision import vision_parameters
from llmviewer.ops.attention import SOFT_CAP_FLOPS
from llmviewer.ops.elementwise import Norm, activation, rms_norm
from llmviewer.ops.gemm import Linear

LayerKind = TypeVar("LayerKind", bound=Hashable)


def group_layers(
    kinds: Sequence[LayerKind], build: Callable[[LayerKind, int], DecoderLayer]
) -> tuple[DecoderLayer, ...]:
    """One DecoderLayer per kind, in order of first appearance, with the numbers of its layers.

    kinds: the kind of every layer.  build: makes the DecoderLayer of a kind that repeats that many times.
    """
    numbers = {kind: tuple(at for at, other in enumerate(kinds) if other == kind) for kind in dict.fromkeys(kinds)}
    return tuple(replace(build(kind, len(at)), numbers=at) for kind, at in numbers.items())


def block_name(kind: tuple[str, ...], kinds: Sequence[tuple[str, ...]]) -> str:
    """The words of `kind` that differ between layers of the model (`full_moe`); `layer` if all layers are alike."""
    differing = (word for word, words in zip(kind, zip(*kinds, strict=True), strict=True) if len(set(words)) > 1)
    return "_".join(differing) or "layer"


def projections(config: Config) -> Projections:
    """Separate q, k, v and o, all with a bias if `attention_bias` is set."""
    bias = config.flag("attention_bias", default=False)
    return Projections(qkv_bias=bias, out_bias=bias)


def attention(config: Config, dtype: Dtype, projections: Projections, *, head_dim: int | None = None) -> Attention:
    """Grouped-query attention with rope from the usual fields.  head_dim: default of the class, if it has one."""
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
    """A gated MLP with the activation `hidden_act` (default SiLU) and `intermediate` elements, without biases."""
    act = activation(config.text(config.first_present("hidden_activation", "hidden_act"), "silu"))
    return Mlp(hidden=hidden_size(config), intermediate=intermediate, activation=act, dtype=dtype)


def gated_mlp(config: Config, dtype: Dtype) -> Mlp:
    """A gated MLP with `intermediate_size` elements, and biases if `mlp_bias` is set."""
    bias = config.flag("mlp_bias", default=False)
    return replace(mlp(config, dtype, config.count("intermediate_size")), bias=bias)


def moe(config: Config, dtype: Dtype, intermediate: int) -> Moe:
    """Routed experts of `intermediate` elements each from the usual fields, and `n_shared_experts` of the same size."""
    shared = config.count("n_shared_experts", 0, minimum=0)
    experts = config.count(config.first_present("num_experts", "n_routed_experts", "num_local_experts"))
    return Moe(
        expert=mlp(config, dtype, intermediate),
        experts=experts,
        chosen=config.count("num_experts_per_tok", maximum=experts),
        dtype=dtype,
        hidden=hidden_size(config),
        shared=mlp(config, dtype, intermediate * shared) if shared else None,
    )


def wide_moe(config: Config, dtype: Dtype) -> Moe:
    """Experts of `intermediate_size` elements each, not of `moe_intermediate_size`."""
    return moe(config, dtype, config.count("intermediate_size"))


def corrected_moe(config: Config, dtype: Dtype) -> Moe:
    """Experts of `moe_intermediate_size` elements, chosen by scores plus a stored correction."""
    return replace(moe(config, dtype, config.count("moe_intermediate_size")), correction_bias=True)


def pre_norms(config: Config, dtype: Dtype) -> Norms:
    """An RMSNorm before the mixer and one before the feed-forward part."""
    hidden = hidden_size(config)
    return Norms(attn=rms_norm("attn_norm", hidden, dtype), mlp=rms_norm("mlp_norm", hidden, dtype))


def sandwich_norms(config: Config, dtype: Dtype) -> Norms:
    """RMSNorms before and after both the mixer and the feed-forward part."""
    hidden = hidden_size(config)
    post = {name: rms_norm(f"{name}_norm", hidden, dtype) for name in ("attn_post", "mlp_post")}
    return replace(pre_norms(config, dtype), **post)


def post_norms(config: Config, dtype: Dtype) -> Norms:
    """RMSNorms after the mixer and after the feed-forward part, none before (OLMo 2)."""
    hidden = hidden_size(config)
    return Norms(attn_post=rms_norm("attn_norm", hidden, dtype), mlp_post=rms_norm("mlp_norm", hidden, dtype))


def model(
    config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...], norm: Norm | None, *, tied: bool = False
) -> Model:
    """A model of `layers` with an embedding of `hidden_size`, the final `norm`, and a head without bias.

    tied: default of the class for `tie_word_embeddings`.
    """
    hidden, vocabulary = hidden_size(config), config.count("vocab_size")
    lm_head = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype)
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=Embedding(vocabulary=vocabulary, width=hidden, dtype=dtype),
        layers=layers,
        head=Head(lm_head=lm_head, tied=config.flag("tie_word_embeddings", default=tied), norm=norm),
        max_context=max_context(config),
    )


def factor_flops(config: Config, name: str) -> float:
    """FLOP per element of a factor: 1, or 0 if the factor is 1."""
    return float(config.number(name, 1.0) != 1.0)


def with_multipliers(built: Model, config: Config) -> Model:
    """The model with Granite's factors on embeddings, branches and logits."""
    residual_flops = 1.0 + factor_flops(config, "residual_multiplier")
    scaled = built.embedding.scaled or bool(factor_flops(config, "embedding_multiplier"))
    logit_flops = built.head.logit_flops + factor_flops(config, "logits_scaling")
    return replace(
        built,
        layers=tuple(replace(layer, residual_flops=residual_flops) for layer in built.layers),
        embedding=replace(built.embedding, scaled=scaled),
        head=replace(built.head, logit_flops=logit_flops),
    )


def with_logit_cap(built: Model, *, capped: bool) -> Model:
    """The model with logits that pass a tanh if they are capped."""
    return replace(built, head=replace(built.head, logit_flops=SOFT_CAP_FLOPS * capped, logit_special=1.0 * capped))


def with_head_bias(built: Model) -> Model:
    """A copy of the model with a bias in its lm_head."""
    return replace(built, head=replace(built.head, lm_head=replace(built.head.lm_head, bias=True)))


def with_state_note(built: Model, config: Config, name: str) -> Model:
    """Add a note if the field `name` asks for a recurrent state wider than the model's dtype, which is used."""
    wanted = config.get(name, built.dtype.name)
    if get_dtype(wanted).bits <= built.dtype.bits:
        return built
    return replace(built, notes=(*built.notes, f"{name} is {wanted}; the state is counted in {built.dtype.name}"))


def with_stored(built: Model, **elements: float) -> Model:
    """The model with weights that are stored and that no pass reads in full."""
    stored = tuple(
        Tensor(name=f"{name}.weight", elements=float(count), dtype=built.dtype, role=Role.WEIGHT)
        for name, count in elements.items()
    )
    return replace(built, embedding=replace(built.embedding, stored=stored))


def with_other_parts(built: Model, config: Config, parts: str) -> Model:
    """Add a note that the `parts` beside the language model are not run, and the memory of a vision tower."""
    stored = vision_parameters(config.fields, built.hidden)
    memory = f"; {stored / 1e9:.2f} B parameters of the vision tower count as memory" if stored else ""
    note = f"only the language model is counted, not the {parts}{memory}"
    return replace(built, notes=(*built.notes, note), vision_parameters=stored)
