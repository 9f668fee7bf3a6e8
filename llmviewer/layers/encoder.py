"""The encoder of an encoder-decoder, which runs in prefill passes only, and the attention that reads its output."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import MODEL_SCOPE, Access, Block, Graph, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import TIED, OperatorRole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.ops.attention import AttentionInputs, AttentionShape, eager
from llmviewer.ops.elementwise import Activation, Norm, activate, embedding
from llmviewer.ops.gemm import Linear


@frozen
class RelativeAttention(Attention):
    """Attention whose scores have a bias by the distance of query and key, from a table of `buckets` rows (T5).

    shared: all layers read the table of the first one; otherwise each has its own (UMT5).
    """

    buckets: int
    shared: bool

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The usual operators; the softmax adds the biases, with the whole table in its cache."""
        name = f"{TIED if self.shared else ''}relative_bias.weight"
        table = Tensor(name=name, elements=1.0 * self.buckets * self.heads, dtype=self.dtype, role=Role.WEIGHT)
        return tuple(
            replace(op, reads=(*op.reads, whole(table))) if op.role is OperatorRole.SOFTMAX else op
            for op in Attention.operators(self, step, x)
        )


@frozen
class CrossAttention(Attention):
    """Attention of new tokens over the keys and values of an encoder's input, which `InputKeys` has cached."""

    causal: bool = False

    def states(self) -> tuple[State, ...]:
        """The cache of the input: as long as the input, whatever has been generated."""
        _, k, v = self._widths
        keys = State(name="k_cache", dtype=self.dtype, per_token=k, of_input=True)
        return (keys, State(name="v_cache", dtype=self.dtype, per_token=v, of_input=True))

    def shape(self, step: Step) -> AttentionShape:
        """Every query sees the whole input."""
        over = Step(tuple(group.over_input for group in step.groups))
        return Attention.shape(self, over)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The projection of the queries, eager attention over the cached input, the output projection."""
        shape = self.shape(step)
        query = self._product("q_proj", self._widths[0], x, step.tokens)
        k, v = (
            whole(Tensor(name=name, elements=shape.keys() * (1.0 * width), dtype=self.dtype, role=Role.CACHE))
            for name, width in zip(("k_cache", "v_cache"), self._widths[1:], strict=True)
        )
        core = eager(shape, AttentionInputs(q=query.output, k=(k,), v=(v,)))
        return (query, *core, *self._after(step.tokens, core[-1].output, (query,)))

    def input_keys(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The projections of the input's keys and values into the cache.  step: of the input."""
        products = []
        for name, width in zip(("k", "v"), self._widths[1:], strict=True):
            elements = step.tokens * (1.0 * width)
            cache = Tensor(name=f"{name}_cache", elements=elements, dtype=self.dtype, role=Role.CACHE)
            products.append(self._product(f"{name}_proj", width, x, step.tokens, (whole(cache),)))
        return tuple(products)


#: The table that encoder and decoder may share; other weights of both have names of their own.
SHARED_TABLE = "embedding.weight"
#: Frames that a kernel of Whisper's convolutions covers, and frames per position of the encoder.
KERNEL, FRAMES_PER_POSITION = 3, 2
#: Last block of an encoder: the projections of its output, one for each decoder layer.
CROSS_KEYS = "cross_keys"


class Embedder(Protocol):
    """The interface of what turns an input into the first hidden states."""

    def block(self, step: Step) -> Block:
        """The block over the input; its last output is the residual stream."""
        ...


@frozen(eq=False)
class Frames:
    """Two convolutions over mel frames, the second of stride 2, each with an activation; then learned positions."""

    bins: int
    hidden: int
    positions: int
    act: Activation
    dtype: Dtype

    def block(self, step: Step) -> Block:
        """The convolutions as products of rows of three frames; one token of the input is one position."""
        operators: list[Operator] = []
        frames = step.tokens * (1.0 * FRAMES_PER_POSITION)
        x = Tensor(name="hidden", elements=frames * self.bins, dtype=self.dtype)
        for at, (width, rows) in enumerate(((self.bins, frames), (self.hidden, step.tokens)), 1):
            conv = Linear(
                name=f"frame_conv{at}",
                in_features=KERNEL * width,
                out_features=self.hidden,
                dtype=self.dtype,
                bias=True,
            )
            operators.append(conv.operator(x, rows))
            operators.append(activate(f"frame_act{at}", operators[-1].output, rows, self.act))
            x = operators[-1].output
        y = Tensor(name="position_embedding", elements=x.elements, dtype=x.dtype)
        elements = 1.0 * self.positions * self.hidden
        table = Tensor(name="position_embedding.weight", elements=elements, dtype=self.dtype, role=Role.WEIGHT)
        added = embedding("position_embedding", (table,), y, step.tokens, flops=1.0)
        operators.append(replace(added, reads=(*added.reads, Access(x, x.elements))))
        return Block(name="embedding", operators=tuple(operators), scope=MODEL_SCOPE)


@frozen(eq=False)
class Encoder:
    """An encoder of width `hidden`, and the projections of its output to the cache of every decoder layer.

    norm: after the last layer.  cross: cross attention of the decoder, in `decoder_layers` layers.
    """

    hidden: int
    dtype: Dtype
    embedding: Embedder
    layers: tuple[DecoderLayer, ...]
    norm: Norm | None
    cross: CrossAttention
    decoder_layers: int

    @property
    def depth(self) -> int:
        """Number of encoder layers; those that are two blocks, of attention and of a feed-forward part, count twice."""
        return sum(layer.repeats for layer in self.layers)

    def blocks(self, step: Step) -> tuple[Block, ...]:
        """The blocks over the input, which run in passes whose sequences have nothing in their cache yet."""
        own = Step(tuple(group.as_input for group in step.groups))
        hidden = Tensor(name="hidden", elements=own.tokens * (1.0 * self.hidden), dtype=self.dtype)
        output = replace(hidden, name="encoder_output")
        before = _renamed(self.embedding.block(own))
        after = () if self.norm is None else (self._norm_block(self.norm, own, hidden),)
        keys = Block(
            name=CROSS_KEYS,
            operators=self.cross.input_keys(own, output),
            repeats=self.decoder_layers,
            numbers=tuple(range(self.depth, self.depth + self.decoder_layers)),
        )
        layers = (layer.block(own, hidden) for layer in self.layers)
        return tuple(replace(block, where=_first(step)) for block in (before, *layers, *after, keys))

    def _norm_block(self, norm: Norm, own: Step, hidden: Tensor) -> Block:
        output = Access(replace(hidden, name="encoder_output"), hidden.elements)
        operator = norm.operator(hidden, own.tokens, (output,))
        return Block(name="encoder_norm", operators=(operator,), scope=MODEL_SCOPE)


def after_encoder(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph that run over the tokens of an answer: all, without those of an encoder."""
    ends = [at for at, block in enumerate(graph.blocks, 1) if block.name == CROSS_KEYS]
    return graph.blocks[ends[0] :] if ends else graph.blocks


def decoder_depth(graph: Graph) -> int:
    """Number of decoder layers of an encoder-decoder; 0 of another model."""
    return next((block.repeats for block in graph.blocks if block.name == CROSS_KEYS), 0)


def _first(step: Step) -> Count:
    """1.0 for passes whose sequences have nothing cached; all groups of a pass are alike."""
    cached = step.groups[0].cached_tokens
    return np.asarray(np.where(np.asarray(cached) > 0.0, 0.0, 1.0)) if np.size(cached) > 1 else 1.0 * (cached == 0.0)


def _renamed(block: Block) -> Block:
    """The embedding of the encoder: its weights have names of their own, but for a table that the decoder shares."""

    def change(access: Access) -> Access:
        tensor = access.tensor
        own = tensor.role is Role.WEIGHT and tensor.name != SHARED_TABLE
        return Access(tensor.called(f"encoder_{tensor.name}"), access.elements) if own else access

    operators = (replace(op, reads=tuple(map(change, op.reads))) for op in block.operators)
    return replace(block, name="encoder_embedding", operators=tuple(operators))
