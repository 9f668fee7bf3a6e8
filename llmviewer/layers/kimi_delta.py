"""Kimi delta attention (arXiv 2510.26692): the gated delta rule with a decay for every key channel."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.gated_delta_net import DECAY_FLOPS, SIGMOID, SOFTPLUS, UNIT_LENGTH_FLOPS
from llmviewer.ops.conv import ShortConv
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import gated_norm, rms_norm
from llmviewer.ops.recurrence import Recurrence, StateUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """A mixer with `heads` states of head_dim x head_dim.

    Queries, keys and values are one matrix and one convolution, as engines store them.
    low_rank: the projections of decay and output gate pass a rank of head_dim (Kimi-Linear), else they are one matrix
    each (Ling 3).
    """

    hidden: int
    heads: int
    head_dim: int
    kernel: int
    dtype: Dtype
    low_rank: bool = True

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        """The recurrent state and the last columns of the convolutions."""
        return (self._rule().state(), self._conv().state())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projections, convolution over queries, keys and values, decay, beta, delta rule, gate, norm, o_proj."""
        tokens = step.tokens
        project = self._linear("qkv_proj", self.hidden, 3 * self._width).operator(x, tokens)
        convolve = self._conv().operator(step, project.output)
        decay, gate = (self._gate(name, tokens, x) for name in ("f", "g"))
        beta = self._linear("b_proj", self.hidden, self.heads).operator(x, tokens)
        reads = tuple(whole(op.output) for op in (convolve, decay[-1], beta))
        rule = self._rule().operator(step, reads)
        norm = rms_norm("mixer_norm", self.head_dim, self.dtype, rows=self.heads)
        normed = gated_norm(norm, rule.output, gate[-1].output, tokens, SIGMOID)
        out = self._linear("o_proj", self._width, self.hidden).operator(normed.output, tokens)
        return (project, convolve, *decay, beta, rule, *gate, normed, out)

    def _gate(self, name: str, tokens: Count, x: Tensor) -> tuple[Operator, ...]:
        """The projections of decay (f) or output gate (g)."""
        if not self.low_rank:
            return (self._linear(f"{name}_proj", self.hidden, self._width).operator(x, tokens),)
        down = self._linear(f"{name}_a_proj", self.hidden, self.head_dim).operator(x, tokens)
        return down, self._linear(f"{name}_b_proj", self.head_dim, self._width).operator(down.output, tokens)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)

    def _conv(self) -> ShortConv:
        return ShortConv(channels=3 * self._width, kernel=self.kernel, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        unit_length = 2 * self._width * UNIT_LENGTH_FLOPS
        return Recurrence(
            elements=self._width * self.head_dim,
            width=self._width,
            rule=StateUpdate.DELTA,
            dtype=self.dtype,
            vector=unit_length + self._width * DECAY_FLOPS + self.heads * SIGMOID.flops,
            special=self._width * (SOFTPLUS.special + 1.0) + self.heads * SIGMOID.special,
            weights=(("A_log", self.heads), ("dt_bias", self._width)),
        )
