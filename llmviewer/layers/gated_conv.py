"""The gated short convolution of LFM2: a mixer whose only memory is the last few tokens.

Source: LFM2 technical report, arXiv 2511.23404, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.conv import IDENTITY, ShortConv
from llmviewer.ops.elementwise import elementwise
from llmviewer.ops.gemm import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConv:
    """A mixer: B, C, x = in_proj(input); output = out_proj(C * conv(B * x)).  bias: of all three."""

    hidden: int
    kernel: int
    dtype: Dtype
    bias: bool = False

    def states(self) -> tuple[State, ...]:
        """The last columns of the convolution."""
        return (self._conv().state(),)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators: in_proj, product of B and x, convolution, product with C, out_proj."""
        tokens = step.tokens
        rows = tokens * (1.0 * self.hidden)
        into = self._linear("in_proj", 3 * self.hidden).operator(x, tokens)
        third = Access(into.output, rows)
        before, after = (Tensor(name=name, elements=rows, dtype=x.dtype) for name in ("conv_in_gate", "conv_gate"))
        enter = elementwise(before.name, (third, third), before, tokens, flops=1.0)
        convolve = self._conv().operator(step, before)
        leave = elementwise(after.name, (third, whole(convolve.output)), after, tokens, flops=1.0)
        return (into, enter, convolve, leave, self._linear("out_proj", self.hidden).operator(after, tokens))

    def _conv(self) -> ShortConv:
        return ShortConv(
            channels=self.hidden, kernel=self.kernel, dtype=self.dtype, bias=self.bias, activation=IDENTITY
        )

    def _linear(self, name: str, width: int) -> Linear:
        return Linear(name=name, in_features=self.hidden, out_features=width, dtype=self.dtype, bias=self.bias)
