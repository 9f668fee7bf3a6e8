"""A decoder layer: norms and residual sums around a mixer and a feed-forward part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from llmviewer.core.ir import Block, Operator, State, Tensor
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import add
from llmviewer.ops.norm import Norm


class FeedForward(Protocol):
    """A feed-forward part."""

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The last one's output is the part's."""
        ...


class Mixer(FeedForward, Protocol):
    """A part that mixes tokens and keeps state between steps."""

    def states(self) -> tuple[State, ...]:
        """What one layer keeps per sequence."""
        ...


class Residual(Enum):
    """How the two parts meet the residual stream."""

    SEQUENTIAL = "sequential"  # x + mixer, then + feed-forward
    PARALLEL = "parallel"  # both read the layer's input
    NORMED = "normed"  # as SEQUENTIAL, but each sum takes the normalised stream (MiniMax-Text-01)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Norms:
    """Where a layer normalises: before a part, after it (inside the branch), or after the sum (the first OPT-350m)."""

    attn: Norm | None = None
    attn_post: Norm | None = None
    attn_sum: Norm | None = None
    mlp: Norm | None = None
    mlp_post: Norm | None = None
    mlp_sum: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderLayer:
    """`times` layers of one kind.  A mixer or a feed-forward part may be missing (Mamba, Nemotron-H).

    residual_flops: per element of a residual sum, 1, or 2 where the branch is scaled first.
    tail: works on the stream after both sums (Gemma 4).
    numbers: which layers of the model these are; none given: the first `times`.
    """

    name: str
    repeats: int
    norms: Norms
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    residual: Residual = Residual.SEQUENTIAL
    residual_flops: float = 1.0
    tail: FeedForward | None = None
    numbers: tuple[int, ...] = ()

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The operators of one such layer; `hidden` is the residual stream it receives."""
        operators: list[Operator] = []
        norms = self.norms
        x = hidden
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
        states = self.mixer.states() if self.mixer is not None else ()
        return Block(name=self.name, operators=tuple(operators), repeats=self.repeats, states=states, numbers=self.numbers)

    def _stream(self, x: Tensor, branch: tuple[Operator, ...]) -> Tensor:
        """What a branch is added to."""
        return branch[0].output if self.residual is Residual.NORMED else x

    def _feed_forward_input(self, hidden: Tensor, x: Tensor, done: list[Operator]) -> tuple[Tensor, Norm | None]:
        """A parallel layer's second branch reads the layer's input, or shares the first branch's norm."""
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
        done.append(add(name, x, done[-1].output, step.tokens, flops=self.residual_flops))
        if norm is not None:
            done.append(norm.operator(done[-1].output, step.tokens))
        return done[-1].output
