"""The form of a dense decoder: an entry says how an architecture differs from Llama, and is its parser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.layers.attention import Attention, Projections, QkNorm
from llmviewer.layers.decoder import DecoderLayer, Mixer, Norms, Residual
from llmviewer.layers.feed_forward import Mlp
from llmviewer.models import parts
from llmviewer.models.config import Config, hidden_size, window
from llmviewer.models.layer_patterns import LayerTypes, RopeLayers, everywhere, no_window
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Norm, NormKind, rms_norm

#: A constant of the class, or the name of a flag in the config (false if missing).
Switch: TypeAlias = bool | str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """How a dense decoder differs from Llama: RMSNorm before each part, attention with rope, SwiGLU.

    defaults: of the class, for fields that a config leaves out.  names: own name of a field -> the usual one.
    constants: fields with the one value that is supported.  ignored: fields without effect on shapes.
    prepare: makes the usual fields of fields that other names cannot.
    mixer: makes another kind of attention.  qk_norm_if: the flag that asks for the QK-norm.
    clip, rotated: fields with a limit of q, k and v, and with the rotated elements per head.
    positions: rows of a learned position table beyond the longest context; None = no table.
    parallel: attention and MLP read the same norm's output.
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
    mixer: Callable[[Config, Dtype], Mixer] | None = None
    fused: bool = False
    qkv_bias: Switch = "attention_bias"
    out_bias: Switch = "attention_bias"
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_kind: NormKind = NormKind.RMS
    qk_norm_if: Switch = True
    clip: str = ""
    rotated: str = ""
    sinks: bool = False
    types: LayerTypes = no_window
    rope: RopeLayers = everywhere
    gated: bool = True
    fused_mlp: bool = False
    mlp_bias: Switch = "mlp_bias"
    mlp_out_bias: bool = False
    sub_norms: bool = False
    parameters: int = 0
    parallel: Switch = False
    positions: int | None = None
    scaled: Switch = False
    embedding_norm: bool = False
    final_norm: bool = True
    tied: bool = False
    head_bias: Switch = False
    factors: bool = False
    caps: bool = False
    beside: str = ""

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config; the form of a parser."""
        self._prepare(config)
        hidden_size(config)  # the first size that is missed in an empty config
        types = self.types(config)
        if self.types is not no_window:
            config.ignore("sliding_window")  # none of the layers may have it
        words = ("rope" if rope else "nope" for rope in self.rope(config, types))
        kinds = list(zip(types, words, strict=True))
        mixer = (self.mixer or self._attention)(config, dtype)
        mlp, parallel = self._mlp(config, dtype), _on(config, self.parallel)
        places = SHARED if parallel else AROUND if _on(config, self.around_if) else self.places
        norms = self._norms(config, dtype, places)

        def layer(kind: tuple[str, str], repeats: int) -> DecoderLayer:
            return DecoderLayer(
                name=parts.block_name(kind, kinds),
                repeats=repeats,
                norms=norms,
                mixer=_variant(config, mixer, kind),
                feed_forward=mlp,
                residual=Residual.PARALLEL if parallel else Residual.SEQUENTIAL,
            )

        return self._model(config, dtype, parts.group_layers(kinds, layer))

    def _prepare(self, config: Config) -> None:
        """Give fields their usual names, fill in the class's defaults, and check what is constant."""
        for own, usual in {**OLDER_NAMES, **self.names}.items():
            if config.has(own):
                if config.get(usual, config.get(own)) != config.get(own):
                    raise UserError(f"{config.where}: fields {own} and {usual} disagree")
                config.defaults(**{usual: config.get(own)})
        if self.prepare:
            self.prepare(config)
        config.defaults(**self.defaults)
        for name, value in self.constants.items():
            config.expect(name, value)
        config.ignore(*self.ignored.split())

    def _norms(self, config: Config, dtype: Dtype, places: Mapping[str, str]) -> Norms:
        hidden = hidden_size(config)
        return Norms(**{place: self.norm(name, hidden, dtype) for place, name in places.items()})

    def _attention(self, config: Config, dtype: Dtype) -> Attention:
        projections = Projections(
            fused=self.fused,
            qkv_bias=_on(config, self.qkv_bias),
            out_bias=_on(config, self.out_bias),
            clip=bool(self.clip) and config.has(self.clip),
        )
        attention = parts.attention(config, dtype, projections)
        if self.rotated:
            rotated = config.count(self.rotated, attention.rotary_dim, maximum=attention.head_dim)
            attention = replace(attention, rotary_dim=rotated)
        return replace(
            attention,
            qk_norm=self.qk_norm if _on(config, self.qk_norm_if) else QkNorm.NONE,
            norm_kind=self.qk_norm_kind,
            sinks=self.sinks,
            soft_cap=self.caps and config.has("attn_logit_softcapping"),
            out_norm=self.sub_norms,
        )

    def _mlp(self, config: Config, dtype: Dtype) -> Mlp:
        width = config.count("intermediate_size", None if self.gated else 4 * hidden_size(config))
        return replace(
            parts.mlp(config, dtype, width),
            gated=self.gated,
            fused=self.fused_mlp,
            bias=_on(config, self.mlp_bias),
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


def _variant(config: Config, mixer: Mixer, kind: tuple[str, str]) -> Mixer:
    """The attention of layers of one kind."""
    if not isinstance(mixer, Attention):
        return mixer
    if kind[0] == "sliding":
        mixer = replace(mixer, window=window(config))
    return mixer if kind[1] == "rope" else replace(mixer, rotary_dim=0)


def attention_of(layer: DecoderLayer) -> Attention:
    """The attention of a layer of `Dense`."""
    assert isinstance(layer.mixer, Attention)
    return layer.mixer
