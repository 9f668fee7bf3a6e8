"""Encoder-decoders: an encoder over the input, and a decoder whose layers attend to it and to their own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmviewer.layers.attention import Attention
from llmviewer.layers.cross_attention import CrossAttention
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Norms
from llmviewer.layers.encoder import Embedder, Encoder
from llmviewer.layers.mlp import Mlp
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
