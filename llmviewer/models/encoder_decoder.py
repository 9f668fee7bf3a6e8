"""Encoder-decoders: T5 and its kin, Switch Transformers, BART and its kin, Whisper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.layers.attention import Attention, Projections
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Norms
from llmviewer.layers.encoder import CrossAttention, Embedder, Encoder, Frames, RelativeAttention
from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.models.config import ABSENT_CONTEXT, MAX_LAYERS, Config
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.elementwise import ACTIVATIONS, Norm, activation, layer_norm, rms_norm
from llmviewer.ops.gemm import Linear


@frozen(eq=False)
class Stack:
    """Layers of one of the two halves: their number, self attention, feed-forward part, and norms around both.

    experts: feed-forward part of the layers `sparse`, counted from 0, instead of `mlp`.
    """

    layers: int
    attention: Attention
    mlp: Mlp
    norms: Norms
    experts: FeedForward | None = None
    sparse: tuple[int, ...] = ()

    @property
    def attention_norms(self) -> Norms:
        """The norms of a block of attention alone."""
        return replace(self.norms, mlp=None, mlp_sum=None)

    @property
    def mlp_norms(self) -> Norms:
        """The norms of a block of a feed-forward part alone."""
        return replace(self.norms, attn=None, attn_sum=None)

    def kinds(self) -> tuple[tuple[str, FeedForward, tuple[int, ...]], ...]:
        """Ending of a block's name, feed-forward part and layers of every kind; no ending if all layers are alike."""
        dense = tuple(layer for layer in range(self.layers) if layer not in self.sparse)
        if self.experts is None or not self.sparse:
            return (("", self.mlp, dense),)
        kinds = (("_dense", self.mlp, dense), ("_moe", self.experts, self.sparse))
        return tuple(kind for kind in kinds if kind[2])


def assembled(
    encoder: Stack, decoder: Stack, embedders: tuple[Embedder, Embedding], norms: tuple[Norm | None, ...], head: Head
) -> Model:
    """The model of two stacks.  embedders, norms: of the encoder, then of the decoder (the last in the head).

    A decoder layer is two blocks: self attention, and cross attention with the feed-forward part.
    """
    dtype, hidden = decoder.attention.dtype, decoder.attention.hidden
    cross = _cross(decoder.attention)
    own = Encoder(
        hidden=hidden,
        dtype=dtype,
        embedding=embedders[0],
        layers=_encoder_layers(encoder),
        norm=norms[0],
        cross=cross,
        decoder_layers=decoder.layers,
    )
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=embedders[1],
        layers=_decoder_layers(decoder, cross, own.depth + decoder.layers),
        head=replace(head, norm=norms[1]),
        max_context=float(ABSENT_CONTEXT),
        encoder=own,
    )


def _encoder_layers(stack: Stack) -> tuple[DecoderLayer, ...]:
    """One block for all layers; where their feed-forward parts differ, one of attention and one of each such part."""
    if len(stack.kinds()) == 1:
        ((_, part, numbers),) = stack.kinds()
        return (_layer("encoder_layer", stack.norms, numbers, stack.attention, part),)
    attention = range(0, 2 * stack.layers, 2)
    parts = tuple(
        _layer(f"encoder_mlp{ending}", stack.mlp_norms, tuple(2 * at + 1 for at in numbers), None, part)
        for ending, part, numbers in stack.kinds()
    )
    return (_layer("encoder_self", stack.attention_norms, attention, stack.attention, None), *parts)


def _decoder_layers(stack: Stack, cross: CrossAttention, start: int) -> tuple[DecoderLayer, ...]:
    """The blocks of self attention, and of cross attention with each kind of feed-forward part.

    start: number of the first one, after the encoder and the projections of its output, one for each decoder layer.
    """
    own = _layer(
        "decoder_self", stack.attention_norms, range(start, start + 2 * stack.layers, 2), stack.attention, None
    )
    others = (
        _layer(f"decoder_cross{ending}", stack.norms, tuple(start + 2 * at + 1 for at in numbers), cross, part)
        for ending, part, numbers in stack.kinds()
    )
    return (own, *others)


def _layer(
    name: str, norms: Norms, numbers: Sequence[int], mixer: Attention | None, part: FeedForward | None
) -> DecoderLayer:
    return DecoderLayer(
        name=name,
        repeats=len(numbers),
        norms=norms,
        mixer=mixer,
        feed_forward=part,
        numbers=tuple(numbers),
    )


def _cross(own: Attention) -> CrossAttention:
    """Cross attention of the shape of the decoder's self attention."""
    return CrossAttention(
        hidden=own.hidden,
        heads=own.heads,
        kv_heads=own.kv_heads,
        head_dim=own.head_dim,
        dtype=own.dtype,
        projections=own.projections,
    )


@frozen
class Entry:
    """Entry for T5ForConditionalGeneration and the same of other names.

    layers, heads, inner, vocabulary, width: defaults of the class.  gated: default of its feed-forward part.
    shared_bias: the first layer of each half has the table of relative positions for all of them.
    """

    layers: int
    heads: int
    inner: int
    vocabulary: int
    gated: bool
    shared_bias: bool = True
    width: int = 512

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config."""
        return self.joined(config, dtype, *self.halves(config, dtype))

    def halves(self, config: Config, dtype: Dtype) -> tuple[Stack, Stack]:
        """Encoder and decoder; a missing `num_decoder_layers` is `num_layers`."""
        config.ignore("relative_attention_max_distance", "dropout_rate", "initializer_factor", "n_positions",
                      "tokenizer_class", "output_past", "num_hidden_layers", "scalable_attention")  # fmt: skip
        layers = config.count("num_layers", self.layers, maximum=MAX_LAYERS)
        depth = config.count("num_decoder_layers", layers, maximum=MAX_LAYERS)
        decoder = self._stack(config, dtype, depth)
        encoder = self._stack(config, dtype, layers)
        return replace(encoder, attention=replace(encoder.attention, causal=False)), decoder

    def joined(self, config: Config, dtype: Dtype, encoder: Stack, decoder: Stack) -> Model:
        """The model of two halves, with one table for both and for lm_head if it is tied."""
        hidden, vocabulary = config.count("d_model", self.width), config.count("vocab_size", self.vocabulary)
        embedding = Embedding(vocabulary=vocabulary, width=hidden, dtype=dtype)
        lm_head = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype)
        tied = config.flag("tie_word_embeddings", default=True)
        config.flag("scale_decoder_outputs", default=tied)
        names = ("encoder_final_norm", "final_norm")
        norms = tuple(rms_norm(name, hidden, dtype) for name in names)
        return assembled(encoder, decoder, (embedding, embedding), norms, Head(lm_head=lm_head, tied=tied))

    def _stack(self, config: Config, dtype: Dtype, layers: int) -> Stack:
        hidden, heads = config.count("d_model", self.width), config.count("num_heads", self.heads)
        attention = RelativeAttention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=config.count("d_kv", 64),
            dtype=dtype,
            alibi=True,  # one sum per score
            buckets=config.count("relative_attention_num_buckets", 32),
            shared=self.shared_bias,
        )
        norms = Norms(attn=rms_norm("attn_norm", hidden, dtype), mlp=rms_norm("mlp_norm", hidden, dtype))
        return Stack(layers=layers, attention=attention, mlp=self._mlp(config, dtype, hidden), norms=norms)

    def _mlp(self, config: Config, dtype: Dtype, hidden: int) -> Mlp:
        """The feed-forward part: `feed_forward_proj` names its activation, behind `gated-` if it has a gate."""
        words = config.text("feed_forward_proj", "gated-gelu" if self.gated else "relu").split("-")
        if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
            stated = quoted("-".join(words))
            raise UserError(f"{config.where}: field 'feed_forward_proj' is {stated}; supported: gated-gelu, relu")
        config.expect("is_gated_act", len(words) == 2)
        config.ignore("dense_act_fn")
        return Mlp(
            hidden=hidden,
            intermediate=config.count("d_ff", self.inner),
            activation=activation(words[-1]),
            dtype=dtype,
            gated=len(words) == 2,
        )


T5 = Entry(layers=6, heads=8, inner=2048, vocabulary=32128, gated=False)
MT5 = Entry(layers=8, heads=6, inner=1024, vocabulary=250112, gated=True)
UMT5 = replace(MT5, shared_bias=False)


#: The class without its experts.
BASE = Entry(layers=12, heads=12, inner=2048, vocabulary=32128, gated=False, width=768)
#: Default of the class for the layers with experts in each half.
SPARSE_LAYERS = 3


def parse_switch_transformers(config: Config, dtype: Dtype) -> Model:
    """SwitchTransformersForConditionalGeneration.  Source: arXiv 2101.03961; transformers, models/switch_transformers.

    Tokens beyond the capacity of their expert pass it by: if all experts are chosen equally often, the class computes
    at most num_experts x expert_capacity tokens of a sequence in a layer with experts.
    """
    config.expect("num_selected_experts", 1)
    config.expect("router_type", "tokens_masked")
    config.expect("batch_prioritized_routing", False)
    config.ignore("router_dtype", "router_ignore_padding_tokens", "add_router_probs")
    config.expect("dense_act_fn", *ACTIVATIONS)  # its class has no gated parts
    act = config.text("dense_act_fn", "relu")
    config.expect("feed_forward_proj", act)
    config.override(feed_forward_proj=act)
    config.defaults(num_decoder_layers=BASE.layers)
    encoder, decoder = BASE.halves(config, dtype)
    encoder, decoder = _with_experts(config, encoder, "encoder"), _with_experts(config, decoder, "decoder")
    return BASE.joined(config, dtype, encoder, decoder)


def _with_experts(config: Config, stack: Stack, half: str) -> Stack:
    """The half with experts in every `step`-th layer, from the second one on."""
    sparse = config.count(f"num_sparse_{half}_layers", SPARSE_LAYERS, minimum=0)
    step = config.count(f"{half}_sparse_step", stack.layers // sparse if sparse else stack.layers, minimum=0)
    numbers = (layer for layer in range(stack.layers) if step == 1 or (step > 1 and layer % step == 1))
    return replace(stack, experts=_experts(config, stack.mlp), sparse=tuple(numbers))


def _experts(config: Config, expert: Mlp) -> Moe:
    return Moe(
        expert=expert,
        experts=config.count("num_experts", 8),
        chosen=1,
        dtype=expert.dtype,
        hidden=expert.hidden,
        router_bias=config.flag("router_bias", default=False),
        capacity=config.count("expert_capacity", 64),
    )


#: Rows of learned position tables in front of the first position (fairseq's padding).
OFFSET = 2


@frozen
class Bart:
    """How an encoder-decoder differs from BART: learned positions behind two rows, a norm on embeddings and on sums.

    pre_norm: norms before the parts, and one after the last layer of both halves.  offset: rows before the first
    position.  has_positions: False if positions are computed, not stored.  norm_embedding: a norm on embeddings.
    logit_bias: a bias that no checkpoint trains is added to the logits.  frames: the input is sound (Whisper).
    """

    defaults: dict[str, Any]
    pre_norm: bool = False
    offset: int = OFFSET
    has_positions: bool = True
    norm_embedding: bool = True
    logit_bias: bool = True
    frames: bool = False

    def __call__(self, config: Config, dtype: Dtype) -> Model:
        """The model of a config; encoder and decoder have sizes of their own but the same width."""
        config.defaults(**self.defaults)
        config.expect("is_encoder_decoder", True)
        config.ignore("num_hidden_layers", "static_position_embeddings", "normalize_before", "normalize_embedding",
                      "add_final_layer_norm", "add_bias_logits", "extra_pos_embeddings", "encoder_layerdrop",
                      "decoder_layerdrop", "classif_dropout", "gradient_checkpointing", "_num_labels",
                      "force_bos_token_to_be_generated")  # fmt: skip
        hidden, vocabulary = config.count("d_model"), config.count("vocab_size")
        encoder, decoder = (self._stack(config, dtype, half) for half in ("encoder", "decoder"))
        encoder = replace(encoder, attention=replace(encoder.attention, causal=False))
        embedding = self._embedding(config, dtype, hidden, vocabulary)
        into: Embedder = self._frames(config, dtype, hidden) if self.frames else embedding
        lm_head = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype)
        tied = config.flag("tie_word_embeddings", default=True)
        head = Head(lm_head=lm_head, tied=tied, logit_flops=float(self.logit_bias))
        names = ("encoder_final_norm", "final_norm")
        ends = tuple(layer_norm(name, hidden, dtype) if self.pre_norm else None for name in names)
        return assembled(encoder, decoder, (into, embedding), ends, head)

    def _stack(self, config: Config, dtype: Dtype, half: str) -> Stack:
        hidden, heads = config.count("d_model"), config.count(f"{half}_attention_heads")
        bias = Projections(qkv_bias=True, out_bias=True, key_bias=not self.frames)
        attention = Attention(
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            dtype=dtype,
            projections=bias,
        )
        mlp = Mlp(
            hidden=hidden,
            intermediate=config.count(f"{half}_ffn_dim"),
            activation=activation(config.text("activation_function")),
            dtype=dtype,
            gated=False,
            bias=True,
        )
        ends = ("attn", "mlp") if self.pre_norm else ("attn_sum", "mlp_sum")
        named = {end: layer_norm(f"{end.removesuffix('_sum')}_norm", hidden, dtype) for end in ends}
        layers = config.count(f"{half}_layers", maximum=MAX_LAYERS)
        return Stack(layers=layers, attention=attention, mlp=mlp, norms=Norms(**named))

    def _embedding(self, config: Config, dtype: Dtype, hidden: int, vocabulary: int) -> Embedding:
        rows = config.count("max_target_positions" if self.frames else "max_position_embeddings")
        return Embedding(
            vocabulary=vocabulary,
            width=hidden,
            dtype=dtype,
            positions=rows + self.offset if self.has_positions else 0,
            scaled=config.flag("scale_embedding", default=False),
            norm=layer_norm("embedding_norm", hidden, dtype) if self.norm_embedding else None,
        )

    def _frames(self, config: Config, dtype: Dtype, hidden: int) -> Frames:
        config.ignore("classifier_proj_size", "use_weighted_layer_sum", "apply_spec_augment", "median_filter_width",
                      "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob",
                      "mask_feature_length", "mask_feature_min_masks", "alignment_heads", "lang_to_id", "task_to_id",
                      "forced_decoder_ids", "max_initial_timestamp_index", "no_timestamps_token_id")  # fmt: skip
        act = activation(config.text("activation_function"))
        rows, bins = config.count("max_source_positions"), config.count("num_mel_bins")
        return Frames(bins=bins, hidden=hidden, positions=rows, act=act, dtype=dtype)


def _sizes(width: int, layers: int, heads: int, inner: int, vocabulary: int, positions: int = 1024) -> dict[str, Any]:
    """The default sizes of a class whose halves are alike."""
    halves = {f"{half}_{name}": size for half in ("encoder", "decoder")
              for name, size in (("layers", layers), ("attention_heads", heads), ("ffn_dim", inner))}  # fmt: skip
    return {"d_model": width, **halves, "vocab_size": vocabulary, "activation_function": "gelu",
            "max_position_embeddings": positions}  # fmt: skip


_LARGE = _sizes(1024, 12, 16, 4096, 50265)
BART = Bart(defaults=_LARGE)
MBART = Bart(defaults=_LARGE, pre_norm=True)
PEGASUS = Bart(defaults=_LARGE, pre_norm=True, offset=0, norm_embedding=False)
MARIAN = Bart(defaults=_sizes(1024, 12, 16, 4096, 58101), offset=0, norm_embedding=False)
M2M_100 = Bart(
    defaults={**_sizes(1024, 12, 16, 4096, 128112), "activation_function": "relu", "scale_embedding": True},
    pre_norm=True, has_positions=False, norm_embedding=False, logit_bias=False,
)  # fmt: skip
PLBART = Bart(defaults={**_sizes(768, 6, 12, 3072, 50005), "scale_embedding": True})
BLENDERBOT = Bart(
    defaults={**_sizes(2560, 24, 32, 10240, 8008, 128), "encoder_layers": 2},
    pre_norm=True, offset=0, norm_embedding=False,
)  # fmt: skip
BLENDERBOT_SMALL = Bart(defaults=_sizes(512, 8, 16, 2048, 50265, 512), offset=0)
WHISPER = Bart(
    defaults={**_sizes(384, 4, 6, 1536, 51865), "max_source_positions": 1500, "max_target_positions": 448,
              "num_mel_bins": 80},
    pre_norm=True, offset=0, norm_embedding=False, logit_bias=False, frames=True,
)  # fmt: skip


def parse_mvp(config: Config, dtype: Dtype) -> Model:
    """MvpForConditionalGeneration without the prompts that it was trained with for single tasks."""
    config.expect("use_prompt", False)
    config.ignore("prompt_length", "prompt_mid_dim")
    return Bart(defaults={**_LARGE, "vocab_size": 50267})(config, dtype)


def parse_marian(config: Config, dtype: Dtype) -> Model:
    """MarianMTModel whose two languages share one vocabulary and table."""
    config.expect("share_encoder_decoder_embeddings", True)
    config.expect("decoder_vocab_size", config.get("vocab_size", MARIAN.defaults["vocab_size"]))
    return MARIAN(config, dtype)
