"""Encoder-decoders: an encoder over the input, and a decoder whose layers attend to it and to their own tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.layers.attention import Attention
from llmviewer.layers.cross_attention import CrossAttention
from llmviewer.layers.decoder import DecoderLayer, FeedForward, Norms
from llmviewer.layers.encoder import Embedder, Encoder
from llmviewer.models.fields import ABSENT_CONTEXT
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """Layers of one of the two halves: their number, self attention, feed-forward part, and norms around both."""

    layers: int
    attention: Attention
    mlp: FeedForward | None
    norms: Norms


def assembled(
    encoder: Stack, decoder: Stack, embedders: tuple[Embedder, Embedding], norms: tuple[Norm | None, ...], head: Head
) -> Model:
    """The model of two stacks.  embedders, norms: of the encoder, then of the decoder (the last in the head).

    A decoder layer is two blocks: self attention, and cross attention with the feed-forward part.
    """
    first, dtype, hidden = encoder.layers, decoder.attention.dtype, decoder.attention.hidden
    cross = _cross(decoder.attention)
    own = Encoder(
        hidden=hidden,
        dtype=dtype,
        embedding=embedders[0],
        layers=(_layer("encoder_layer", encoder, range(first), encoder.attention),),
        norm=norms[0],
        cross=cross,
        decoder_layers=decoder.layers,
    )
    start = first + decoder.layers  # after the projections of the encoder's output, one for each decoder layer
    end = start + 2 * decoder.layers
    alone = replace(decoder, norms=replace(decoder.norms, mlp=None, mlp_sum=None), mlp=None)
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=embedders[1],
        layers=(
            _layer("decoder_self", alone, range(start, end, 2), decoder.attention),
            _layer("decoder_cross", decoder, range(start + 1, end, 2), cross),
        ),
        head=replace(head, norm=norms[1]),
        max_context=float(ABSENT_CONTEXT),
        encoder=own,
    )


def _layer(name: str, stack: Stack, numbers: range, mixer: Attention) -> DecoderLayer:
    return DecoderLayer(
        name=name,
        repeats=stack.layers,
        norms=stack.norms,
        mixer=mixer,
        feed_forward=stack.mlp,
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
