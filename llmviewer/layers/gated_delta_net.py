"""The gated delta rule (arXiv 2412.06464) as used in Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.conv import ShortConv
from llmviewer.ops.elementwise import ACTIVATIONS
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import gated_norm, rms_norm
from llmviewer.ops.recurrence import Recurrence, StateUpdate

SILU, SIGMOID, SOFTPLUS = (ACTIVATIONS[name] for name in ("silu", "sigmoid", "softplus"))
#: Per element of queries and keys normalised to unit length: square, add, multiply.
UNIT_LENGTH_FLOPS = 3.0
#: Per head for the decay: bias and softplus of its argument, multiplication by A, exponential.
DECAY_FLOPS = 1.0 + SOFTPLUS.flops + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """A mixer with `v_heads` states of k_dim x v_dim; each of `k_heads` query-key heads serves several of them.

    fused: the checkpoint has in_proj_qkvz and in_proj_ba (Qwen3-Next) instead of in_proj_qkv, _z, _b and _a (Qwen3.5).
    """

    hidden: int
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    dtype: Dtype
    fused: bool

    @property
    def _values(self) -> int:
        return self.v_heads * self.v_dim

    def states(self) -> tuple[State, ...]:
        """The recurrent state and the last columns of the convolution."""
        return (self._rule().state(), self._conv().state())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Projections, convolution over queries, keys and values, delta rule, gated norm, out_proj."""
        projections, outputs = self._project(step.tokens, x)
        convolve = self._conv().operator(step, outputs["qkv"])
        rule = self._rule().operator(step, (whole(convolve.output), whole(outputs["b"]), whole(outputs["a"])))
        norm = rms_norm("mixer_norm", self.v_dim, self.dtype, rows=self.v_heads)
        normed = gated_norm(norm, rule.output, outputs["z"], step.tokens, SILU)
        out = self._linear("out_proj", self._values, self.hidden).operator(normed.output, step.tokens)
        return (*projections, convolve, rule, normed, out)

    def _project(self, tokens: Count, x: Tensor) -> tuple[tuple[Operator, ...], dict[str, Tensor]]:
        """The projections and their outputs: queries, keys and values; gate z; b and a, which set beta and decay."""
        widths = {"qkv": self._conv().channels, "z": self._values, "b": self.v_heads, "a": self.v_heads}
        outputs = {
            name: Tensor(name=f"in_proj_{name}", elements=tokens * (1.0 * width), dtype=x.dtype)
            for name, width in widths.items()
        }
        matrices = (("qkv", "z"), ("b", "a")) if self.fused else tuple((name,) for name in widths)
        operators = tuple(
            self._linear(f"in_proj_{''.join(names)}", self.hidden, sum(widths[name] for name in names)).operator(
                x, tokens, tuple(whole(outputs[name]) for name in names)
            )
            for names in matrices
        )
        return operators, outputs

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)

    def _conv(self) -> ShortConv:
        return ShortConv(channels=2 * self.k_heads * self.k_dim + self._values, kernel=self.kernel, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        unit_length = 2 * self.k_heads * self.k_dim * UNIT_LENGTH_FLOPS
        return Recurrence(
            elements=self.v_heads * self.k_dim * self.v_dim,
            width=self._values,
            rule=StateUpdate.DELTA,
            dtype=self.dtype,
            vector=unit_length + self.v_heads * (SIGMOID.flops + DECAY_FLOPS),
            special=self.v_heads * (SIGMOID.special + SOFTPLUS.special + 1.0),
            weights=(("A_log", self.v_heads), ("dt_bias", self.v_heads)),
        )
