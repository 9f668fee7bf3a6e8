"""The form of a decoder: an entry says how an architecture differs from Llama, and is its parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Mixer, Norms, Residual
from llmviewer.layers.feed_forward import Mlp
from llmviewer.models import parts
from llmviewer.models.config import Config, hidden_size, layer_count, window
from llmviewer.models.layer_patterns import LayerTypes, RopeLayers, all_full, everywhere, no_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Norm, NormKind, rms_norm

#: A constant of the class, or the name of a flag in the config (false if missing).
Switch: TypeAlias = bool | str
#: Type of attention, `rope` or `nope`, and `dense` or `moe`, of one layer.
Kind: TypeAlias = tuple[str, str, str]
NormMaker: TypeAlias = Callable[[str, float, Dtype], Norm]
#: Where the norms of a layer stand -> field of `Norms` and name of the operator.
BEFORE = {"attn": "attn_norm", "mlp": "mlp_norm"}
AFTER = {"attn_post": "attn_norm", "mlp_post": "mlp_norm"}
AROUND = {**BEFORE, "attn_post": "attn_post_norm", "mlp_post": "mlp_post_norm"}
ON_SUM = {"attn_sum": "attn_norm", "mlp_sum": "mlp_norm"}
#: One norm before attention and MLP in parallel.
SHARED = {"attn": "attn_norm"}

#: Names of older classes -> the usual ones.
OLDER_NAMES = {
    **dict.fromkeys(("n_embd", "n_embed", "d_model"), "hidden_size"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers"), "num_hidden_layers"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "attention_heads"), "num_attention_heads"),
    **dict.fromkeys(("n_inner", "ffn_dim"), "intermediate_size"),
    "n_positions": "max_position_embeddings",
    "activation_function": "hidden_act",
}


def sizes(
    hidden: int, intermediate: int | None, layers: int, heads: int, vocabulary: int, context: int
) -> dict[str, int | None]:
    """Sizes of a class's default config, which published configs leave out where they are equal."""
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
    }


@frozen
class Decoder:
    """How a decoder differs from Llama: RMSNorm before each part, attention with rope, SwiGLU.

    defaults: of the class, for fields that a config leaves out.  names: own name of a field -> the usual one.
    constants: fields with the one value that is supported; a tuple holds several.  ignored: fields without effect.
    prepare: makes the usual fields of fields that other names cannot.  finish: changes the finished model.
    mixers: makes another kind of attention, one for all layers or one for each of their types.
    bias: of q, k and v, of o_proj and of the MLP; each may have a switch of its own.
    qk_norm_if: the flag that asks for the QK-norm.  head_dim: of the class, 0 = hidden_size / heads.
    clip, rotated: fields with a limit of q, k and v, and with the rotated elements per head.
    types: of every layer; one that ends in `_nope` has no rope.  unrotated: types without rope beside a window.
    dense, experts: make other feed-forward parts.  placement: `dense` or `moe` for every layer.
    positions: rows of a learned position table beyond the longest context; None = no table.
    parallel: attention and MLP read the same norm's output, or one norm each if not `shared_norm`.
    factors: factors on embeddings, branches and logits (Granite).  caps: soft caps (Gemma).
    sub_norms: norms before the last matrix of attention and MLP.  parameters: learned numbers of the activation.
    around_if: the flag that asks for norms after each part too.  beside: other parts of the model, which are not run.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    ignored: str = ""
    prepare: Callable[[Config], None] | None = None
    norm: NormMaker = rms_norm
    places: Mapping[str, str] = field(default_factory=lambda: BEFORE)
    around_if: Switch = False
    mixers: Callable[[Config, Dtype], Mixer | Mapping[str, Mixer]] | None = None
    fused: bool = False
    bias: Switch | None = None
    qkv_bias: Switch | None = None
    out_bias: Switch | None = None
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_kind: NormKind = NormKind.RMS
    qk_norm_if: Switch = True
    head_dim: int = 0
    clip: str = ""
    rotated: str = ""
    sinks: bool = False
    gate: bool = False
    types: LayerTypes = no_window
    rope: RopeLayers = everywhere
    unrotated: tuple[str, ...] = ()
    gated: bool = True
    fused_mlp: bool = False
    mlp_bias: Switch | None = None
    mlp_out_bias: bool = False
    sub_norms: bool = False
    parameters: int = 0
    dense: Callable[[Config, Dtype], FeedForward] | None = None
    experts: Callable[[Config, Dtype], FeedForward] | None = None
    placement: Callable[[Config], Sequence[str]] | None = None
    parallel: Switch = False
    shared_norm: bool = True
    positions: int | None = None
    scaled: Switch = False
    embedding_norm: bool = False
    final_norm: bool = True
    tied: bool = False
    head_bias: Switch = False
    factors: bool = False
    caps: bool = False
    beside: str = ""
    finish: Callable[[Model, Config], Model] | None = None

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config; the form of a parser."""
        self._prepare(config)
        hidden_size(config)  # the first size that is missed in an empty config
        kinds = self._kinds(config)
        mixers = (self.mixers or self.attention)(config, dtype)
        build = {"dense": self.dense or self._mlp, "moe": self.experts or self._mlp}
        feed_forwards = {word: build[word](config, dtype) for word in dict.fromkeys(kind[2] for kind in kinds)}
        parallel = _on(config, self.parallel)
        norms = self._norms(config, dtype, parallel=parallel)

        def layer(kind: Kind, repeats: int) -> DecoderLayer:
            return DecoderLayer(
                name=parts.block_name(kind, kinds),
                repeats=repeats,
                norms=norms,
                mixer=mixers[kind[0]] if isinstance(mixers, Mapping) else self._variant(config, mixers, kind),
                feed_forward=feed_forwards[kind[2]],
                residual=Residual.PARALLEL if parallel else Residual.SEQUENTIAL,
            )

        built = self._model(config, dtype, parts.group_layers(kinds, layer))
        return self.finish(built, config) if self.finish else built

    def _prepare(self, config: Config) -> None:
        """Give fields their usual names, fill in the class's defaults, and check what is constant."""
        ignored = self.ignored.split()
        for own, usual in {**OLDER_NAMES, **self.names}.items():
            if own not in ignored and config.has(own):
                if config.get(usual, config.get(own)) != config.get(own):
                    raise UserError(f"{config.where}: fields {own} and {usual} disagree")
                config.defaults(**{usual: config.get(own)})
        if self.prepare:
            self.prepare(config)
        config.defaults(**self.defaults)
        for name, value in self.constants.items():
            config.expect(name, *(value if isinstance(value, tuple) else (value,)))
        config.ignore(*ignored)

    def _kinds(self, config: Config) -> list[Kind]:
        """The kind of every layer; fields that only some kinds read are ignored."""
        words = self.placement(config) if self.placement else ["moe" if self.experts else "dense"] * layer_count(config)
        types = (all_full if self.experts and self.types is no_window else self.types)(config)
        if self.experts or self.types is not no_window:
            config.ignore("sliding_window")  # none of the layers may have it
        if self.experts:
            config.ignore("intermediate_size")
        turned = ("rope" if rope else "nope" for rope in self.rope(config, types))
        return list(zip(types, turned, words, strict=True))

    def _norms(self, config: Config, dtype: Dtype, *, parallel: bool) -> Norms:
        places = AROUND if _on(config, self.around_if) else self.places
        hidden = hidden_size(config)
        shared = SHARED if parallel and self.shared_norm else places
        return Norms(**{place: self.norm(name, hidden, dtype) for place, name in shared.items()})

    def _bias(self, config: Config, own: Switch | None, default: str) -> bool:
        """The bias of a matrix: its own switch, else the one of all matrices, else the usual field."""
        return _on(config, next(switch for switch in (own, self.bias, default) if switch is not None))

    def attention(self, config: Config, dtype: Dtype) -> Attention:
        """The attention of layers without a window."""
        projections = Projections(
            fused=self.fused,
            qkv_bias=self._bias(config, self.qkv_bias, "attention_bias"),
            out_bias=self._bias(config, self.out_bias, "attention_bias"),
            clip=bool(self.clip) and config.has(self.clip),
        )
        attention = parts.attention(config, dtype, projections, head_dim=self.head_dim or None)
        if self.rotated:
            rotated = config.count(self.rotated, attention.rotary_dim, maximum=attention.head_dim)
            attention = replace(attention, rotary_dim=rotated)
        return replace(
            attention,
            qk_norm=self.qk_norm if _on(config, self.qk_norm_if) else QkNorm.NONE,
            norm_kind=self.qk_norm_kind,
            gate=self.gate,
            sinks=self.sinks,
            soft_cap=self.caps and config.has("attn_logit_softcapping"),
            out_norm=self.sub_norms,
        )

    def _variant(self, config: Config, mixer: Mixer, kind: Kind) -> Mixer:
        """The attention of layers of one kind."""
        if not isinstance(mixer, Attention):
            return mixer
        name, turned, _ = kind
        if name.startswith("sliding"):
            mixer = replace(mixer, window=window(config))
        still = turned == "nope" or name.endswith("_nope")
        still = still or (name in self.unrotated and config.has("sliding_window"))
        return replace(mixer, rotary_dim=0) if still else mixer

    def _mlp(self, config: Config, dtype: Dtype) -> Mlp:
        width = config.count("intermediate_size", None if self.gated else 4 * hidden_size(config))
        return replace(
            parts.mlp(config, dtype, width),
            gated=self.gated,
            fused=self.fused_mlp,
            bias=self._bias(config, self.mlp_bias, "mlp_bias"),
            out_bias=self.mlp_out_bias,
            norm=self.sub_norms,
            parameters=self.parameters,
        )

    def _model(self, config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...]) -> Model:
        hidden = hidden_size(config)
        norm = self.norm("final_norm", hidden, dtype) if self.final_norm else None
        plain = parts.model(config, dtype, layers, norm, tied=self.tied)
        rows = 0 if self.positions is None else config.count("max_position_embeddings") + self.positions
        before = self.norm("embedding_norm", hidden, dtype) if self.embedding_norm else None
        embedding = replace(plain.embedding, scaled=_on(config, self.scaled), positions=rows, norm=before)
        capped = self.caps and config.has("final_logit_softcapping")
        built = parts.with_logit_cap(replace(plain, embedding=embedding), capped=capped)
        if self.factors:
            built = parts.with_multipliers(built, config)
        if self.beside:
            built = parts.with_other_parts(built, config, self.beside)
        return parts.with_head_bias(built) if _on(config, self.head_bias) else built


def _on(config: Config, switch: Switch) -> bool:
    return config.flag(switch, default=False) if isinstance(switch, str) else switch


def attention_of(layer: DecoderLayer) -> Attention:
    """The attention of a layer of `Decoder`."""
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def with_attention(model: Model, **changes: Any) -> Model:
    """The model of `Decoder` with these fields of its attention changed in every layer."""
    layers = (replace(layer, mixer=replace(attention_of(layer), **changes)) for layer in model.layers)
    return replace(model, layers=tuple(layers))
