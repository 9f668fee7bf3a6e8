"""Decoder layers: norms and residual sums around a mixer and a feed-forward part."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Protocol

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import Activation, Norm, NormKind, add, elementwise, elementwise_as
from llmviewer.ops.gemm import Linear

#: Per mixing weight: scale, bias and sigmoid.
WEIGHT_FLOPS = 6.0


@frozen
class HyperConnection:
    """`count` streams of `hidden` elements.

    A projection of all streams gives each token its weights: `count` to collapse the streams into a part's input,
    `count` to spread the part's output; and with `mixes`, count x count to mix the streams among themselves, made
    doubly stochastic by `iterations` of Sinkhorn's normalisation.  scales: stored factors of these groups of weights.
    """

    hidden: int
    count: int
    dtype: Dtype
    mixes: bool = True
    iterations: int = 0
    spreads: bool = True

    @property
    def _weights(self) -> int:
        """Weights per token."""
        return self.count * (1 + self.spreads) + (self.count**2 if self.mixes else 0)

    def widened(self, x: Tensor) -> Tensor:
        """The residual stream as a tensor of all streams."""
        return Tensor(name=x.name, elements=x.elements * self.count, dtype=x.dtype)

    def collapse(self, name: str, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Norm, projection, weights, and the weighted sum of the streams.  x: all streams."""
        tokens, width, weights = step.tokens, self.hidden * self.count, self._weights
        norm = Norm(name=f"{name}_hc_norm", kind=NormKind.RMS, width=width, parameters=0, dtype=self.dtype)
        normed = norm.operator(x, tokens)
        linear = Linear(name=f"{name}_hc_proj", in_features=width, out_features=weights, dtype=self.dtype)
        logits = linear.operator(normed.output, tokens)
        scales = 1 + self.spreads + self.mixes
        stored = Tensor(
            name=f"{name}_hc_base.weight", elements=float(weights + scales), dtype=self.dtype, role=Role.WEIGHT
        )
        y = Tensor(name=f"{name}_hc_weights", elements=tokens * (1.0 * weights), dtype=x.dtype)
        sinkhorn = 4.0 * self.iterations * self.count**2 / weights if self.mixes else 0.0
        reads = (whole(logits.output), whole(stored))
        mixed = elementwise(y.name, reads, y, tokens, flops=WEIGHT_FLOPS + sinkhorn, special=1.0)
        out = Tensor(name=f"{name}_hc_collapse", elements=tokens * (1.0 * self.hidden), dtype=x.dtype)
        return normed, logits, mixed, elementwise(out.name, (whole(x), whole(y)), out, tokens, flops=2.0 * self.count)

    def spread(self, name: str, tokens: Count, x: Tensor, out: Tensor, weights: Tensor) -> Operator:
        """The sum of mixed streams and the spread output.  x: all streams.  out: the part's output."""
        y = Tensor(name=f"{name}_add", elements=x.elements, dtype=x.dtype)
        work = Activation(2.0 + (2.0 * self.count if self.mixes else 0.0), 0.0)
        return elementwise_as(OperatorRole.RESIDUAL, y.name, (whole(x), whole(out), whole(weights)), y, tokens, work)


class FeedForward(Protocol):
    """The interface of a feed-forward part."""

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the part; the output of the last one is the part's output."""
        ...


class Mixer(FeedForward, Protocol):
    """The interface of a part that mixes tokens and keeps a state between steps."""

    def states(self) -> tuple[State, ...]:
        """The KV cache or recurrent state of one layer, per sequence."""
        ...


class Residual(Enum):
    """How the outputs of the two parts are added to the residual stream."""

    SEQUENTIAL = "sequential"  # x + mixer, then + feed-forward part
    PARALLEL = "parallel"  # both read the layer's input
    NORMED = "normed"  # as SEQUENTIAL, but each sum adds to the normalised stream (MiniMax-Text-01)


@frozen(eq=False)
class Norms:
    """The norms of a layer: before a part, after it (`_post`, before the sum), or after the sum (OPT-350m)."""

    attn: Norm | None = None
    attn_post: Norm | None = None
    attn_sum: Norm | None = None
    mlp: Norm | None = None
    mlp_post: Norm | None = None
    mlp_sum: Norm | None = None


@frozen(eq=False)
class DecoderLayer:
    """`repeats` layers of one kind.  The mixer or the feed-forward part may be missing (Mamba, Nemotron-H).

    residual_flops: FLOP per element of a residual sum: 1, or 2 if the branch is scaled first.
    residual_weights: elements of a learned vector that weights the residual stream in each sum (Doge), 0 = none.
    scope: layers of the same scope have the same weights (HRM, whose stacks run several times).
    lead, tail: a part before the mixer's norm (Gemma 3n) and one after both sums (Gemma 4).
    streams: several residual streams in place of one (DeepSeek-V4).
    numbers: layer numbers in the model; empty: the first `repeats` layers.  copies: of weights that layers share.
    """

    name: str
    repeats: int
    norms: Norms
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    residual: Residual = Residual.SEQUENTIAL
    residual_flops: float = 1.0
    residual_weights: int = 0
    scope: str = ""
    lead: FeedForward | None = None
    tail: FeedForward | None = None
    streams: HyperConnection | None = None
    numbers: tuple[int, ...] = ()
    copies: int = 1

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The block of these layers.  hidden: the residual stream that a layer receives."""
        if self.streams is not None:
            return self._streamed(self.streams, step, self.streams.widened(hidden))
        operators: list[Operator] = []
        norms = self.norms
        x = hidden
        if self.lead is not None:
            operators += self.lead.operators(step, x)
            x = replace(operators[-1].output, elements=x.elements)
        if self.mixer is not None:
            branch = self._branch(step, x, norms.attn, self.mixer, norms.attn_post)
            operators += branch
            x = self._sum("attn_add", step, self._stream(x, branch), norms.attn_sum, operators)
        if self.feed_forward is not None:
            source, norm = self._feed_forward_input(hidden, x, operators)
            branch = self._branch(step, source, norm, self.feed_forward, norms.mlp_post)
            operators += branch
            x = self._sum("mlp_add", step, self._stream(x, branch), norms.mlp_sum, operators)
        if self.tail is not None:
            operators += self.tail.operators(step, x)
        return self._made(operators)

    def _made(self, operators: list[Operator]) -> Block:
        states = self.mixer.states() if self.mixer is not None else ()
        return Block(
            name=self.name,
            operators=tuple(operators),
            repeats=self.repeats,
            states=states,
            scope=self.scope,
            numbers=self.numbers,
            copies=self.copies,
        )

    def _streamed(self, streams: HyperConnection, step: Step, x: Tensor) -> Block:
        """The block with several residual streams `x`: each part reads their weighted sum and is spread over them."""
        operators: list[Operator] = []
        named = (("attn", self.mixer, self.norms.attn), ("mlp", self.feed_forward, self.norms.mlp))
        for name, part, norm in named:
            if part is not None:
                before = streams.collapse(name, step, x)
                branch = self._branch(step, before[-1].output, norm, part, None)
                after = streams.spread(name, step.tokens, x, branch[-1].output, before[-2].output)
                operators += (*before, *branch, after)
                x = after.output
        return self._made(operators)

    def _stream(self, x: Tensor, branch: tuple[Operator, ...]) -> Tensor:
        """The tensor that the output of a branch is added to."""
        return branch[0].output if self.residual is Residual.NORMED else x

    def _feed_forward_input(self, hidden: Tensor, x: Tensor, done: list[Operator]) -> tuple[Tensor, Norm | None]:
        """The input of the feed-forward part, and the norm before it.

        In a parallel layer this is the layer's input, or the output of the mixer's norm if both share it.
        """
        if self.residual is not Residual.PARALLEL:
            return x, self.norms.mlp
        if self.norms.mlp is None and self.norms.attn is not None:
            return done[0].output, None
        return hidden, self.norms.mlp

    def _branch(
        self, step: Step, x: Tensor, before: Norm | None, part: FeedForward, after: Norm | None
    ) -> tuple[Operator, ...]:
        operators: tuple[Operator, ...] = ()
        if before is not None:
            operators = (before.operator(x, step.tokens),)
            x = operators[-1].output
        operators += part.operators(step, x)
        if after is not None:
            operators += (after.operator(operators[-1].output, step.tokens),)
        return operators

    def _sum(self, name: str, step: Step, x: Tensor, norm: Norm | None, done: list[Operator]) -> Tensor:
        flops = self.residual_flops + bool(self.residual_weights)
        total = add(name, x, done[-1].output, step.tokens, flops=flops)
        if self.residual_weights:
            elements = float(self.residual_weights)
            weight = Tensor(name=f"{name}.weight", elements=elements, dtype=x.dtype, role=Role.WEIGHT)
            total = replace(total, reads=(*total.reads, whole(weight)))
        done.append(total)
        if norm is not None:
            done.append(norm.operator(done[-1].output, step.tokens))
        return done[-1].output
