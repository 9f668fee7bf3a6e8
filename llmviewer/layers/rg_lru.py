"""The recurrent block of Griffin (arXiv 2402.19427): a convolution and the real-gated linear recurrent unit."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.conv import IDENTITY, ShortConv
from llmviewer.ops.elementwise import ACTIVATIONS, Activation, gated
from llmviewer.ops.gemm import Linear
from llmviewer.ops.recurrence import Recurrence, StateUpdate

SIGMOID = ACTIVATIONS["sigmoid"]
#: Per channel: sigmoids of both gates; decay exp(c r) and its square, 1 - a^2 and its root; c is a parameter.
CHANNEL_FLOPS = 2 * SIGMOID.flops + 5.0
#: Per channel: exponentials of the sigmoids and the decay, the root.
CHANNEL_SPECIAL = 2 * SIGMOID.special + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RgLru:
    """A mixer with one state element for each of `width` channels, and gates of `blocks` square blocks on a diagonal.

    The update h = a h + sqrt(1 - a^2) (i x) is four FLOP per channel, as many as the rule DECAY counts.
    """

    hidden: int
    width: int
    blocks: int
    kernel: int
    activation: Activation
    dtype: Dtype

    def states(self) -> tuple[State, ...]:
        """The recurrent state and the last columns of the convolution."""
        return (self._unit().state(), self._conv().state())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The branch with convolution, gates and recurrence, the activated branch, their product, linear_out."""
        tokens = step.tokens
        branch = self._linear("linear_y", self.hidden, self.width).operator(x, tokens)
        into = self._linear("linear_x", self.hidden, self.width).operator(x, tokens)
        convolve = self._conv().operator(step, into.output)
        block = self.width // self.blocks
        gates = tuple(
            self._linear(name, block, self.width).operator(convolve.output, tokens)
            for name in ("input_gate", "recurrent_gate")
        )
        unit = self._unit().operator(step, tuple(whole(op.output) for op in (convolve, *gates)))
        y = Tensor(name="mixer_gate", elements=unit.output.elements, dtype=x.dtype)
        gating = gated("mixer_gate", (whole(branch.output), whole(unit.output)), y, tokens, self.activation)
        out = self._linear("linear_out", self.width, self.hidden).operator(y, tokens)
        return (branch, into, convolve, *gates, unit, gating, out)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype, bias=True)

    def _conv(self) -> ShortConv:
        return ShortConv(channels=self.width, kernel=self.kernel, dtype=self.dtype, bias=True, activation=IDENTITY)

    def _unit(self) -> Recurrence:
        return Recurrence(
            elements=self.width,
            width=self.width,
            rule=StateUpdate.DECAY,
            dtype=self.dtype,
            vector=self.width * CHANNEL_FLOPS,
            special=self.width * CHANNEL_SPECIAL,
            weights=(("recurrent_param", self.width),),
        )
