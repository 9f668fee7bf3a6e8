"""Recurrent mixers: Mamba and Mamba-2, RG-LRU (Griffin), gated convolution (LFM2), attention beside Mamba-2 heads."""

from __future__ import annotations

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.decoder import Mixer
from llmviewer.ops.conv import IDENTITY, ShortConv
from llmviewer.ops.elementwise import ACTIVATIONS, Activation, Norm, NormKind, add, elementwise, gated, gated_norm
from llmviewer.ops.gemm import Linear
from llmviewer.ops.recurrence import Recurrence, StateUpdate

SILU, SOFTPLUS = ACTIVATIONS["silu"], ACTIVATIONS["softplus"]
#: Per channel: multiplication by the time step; the skip D x and its sum.
CHANNEL_FLOPS = 3.0
#: Per decay: multiplication of time step and A, exponential.
DECAY_FLOPS = 2.0


@frozen
class Mamba:
    """Mamba-1: each of `inner` channels has its own `state` elements and decays.

    dt_rank: rank of the time-step projection.  inner_norms: RMSNorms on time steps, B and C (Jamba).
    norm_weights: whether these have weights (not in Falcon-Mamba).
    heads: equal parts of the channels, each with its own time steps, B and C (Zamba).
    """

    hidden: int
    inner: int
    state: int
    dt_rank: int
    kernel: int
    dtype: Dtype
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = False
    norm_weights: bool = True
    heads: int = 1

    def states(self) -> tuple[State, ...]:
        """The recurrent state and the last columns of the convolution."""
        return (self._scan().state(), self._conv().state())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """in_proj (channels, gate), convolution, x_proj (time steps, B, C), dt_proj, scan, gate, out_proj."""
        tokens = step.tokens
        channels, gate, y = (_rows(name, tokens, self.inner, x) for name in ("in_proj", "gate", "mixer_gate"))
        in_proj = _linear(self, "in_proj", self.hidden, 2 * self.inner, bias=self.bias)
        project = in_proj.operator(x, tokens, (whole(channels), whole(gate)))
        conv = self._conv().operator(step, channels)
        select, (latent, *b_and_c) = self._select(tokens, conv.output)
        time_steps = _linear(self, "dt_proj", self.dt_rank, self.inner, bias=True).operator(latent, tokens)
        inputs = (conv.output, time_steps.output, *b_and_c)
        scan = self._scan().operator(step, tuple(map(whole, inputs)))
        gating = gated("mixer_gate", (whole(gate), whole(scan.output)), y, tokens, SILU)
        out = _linear(self, "out_proj", self.inner, self.hidden, bias=self.bias).operator(y, tokens)
        return (project, conv, *select, time_steps, scan, gating, out)

    def _conv(self) -> ShortConv:
        return ShortConv(channels=self.inner, kernel=self.kernel, dtype=self.dtype, bias=self.conv_bias)

    def _scan(self) -> Recurrence:
        elements = self.inner * self.state
        return Recurrence(
            elements=elements,
            width=self.inner,
            rule=StateUpdate.DECAY,
            dtype=self.dtype,
            vector=self.inner * (SOFTPLUS.flops + CHANNEL_FLOPS) + elements * DECAY_FLOPS,
            special=self.inner * SOFTPLUS.special + elements,
            weights=(("A_log", elements), ("D", self.inner)),
        )

    def _select(self, tokens: Count, x: Tensor) -> tuple[tuple[Operator, ...], tuple[Tensor, ...]]:
        """x_proj and any norms after it, and their outputs: low-rank time steps, B and C."""
        names = ("dt", "b", "c")
        widths = tuple(self.heads * width for width in (self.dt_rank, self.state, self.state))
        outputs = tuple(_rows(f"x_proj_{name}", tokens, width, x) for name, width in zip(names, widths, strict=True))
        project = _linear(self, "x_proj", self.inner // self.heads, sum(widths)).operator(
            x, tokens, tuple(map(whole, outputs))
        )
        if not self.inner_norms:
            return (project,), outputs
        norms = tuple(
            self._inner_norm(f"{name}_norm", width).operator(tensor, tokens)
            for name, width, tensor in zip(names, widths, outputs, strict=True)
        )
        return (project, *norms), tuple(norm.output for norm in norms)

    def _inner_norm(self, name: str, width: int) -> Norm:
        parameters = width if self.norm_weights else 0
        return Norm(name=name, kind=NormKind.RMS, width=width, parameters=parameters, dtype=self.dtype)


@frozen
class Mamba2:
    """Mamba-2: `heads` heads of `head_dim` channels, one decay per head, `state` elements per channel.

    B, C and the output norm are per group.  bias: of in_proj; out_bias: of out_proj.
    normed: the gated output passes a norm; Falcon-H1 may have only the gate.
    """

    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    dtype: Dtype
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    normed: bool = True

    @property
    def inner(self) -> int:
        """Total channels of all heads."""
        return self.heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        """The recurrent state and the last columns of the convolution."""
        return (self._scan().state(), self._conv().state())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """in_proj (channels with B and C, gate, time steps), convolution, scan, gated norm, out_proj."""
        tokens, conv = step.tokens, self._conv()
        widths = {"in_proj": conv.channels, "gate": self.inner, "time_steps": self.heads}
        channels, gate, time_steps = (_rows(name, tokens, width, x) for name, width in widths.items())
        in_proj = _linear(self, "in_proj", self.hidden, sum(widths.values()), bias=self.bias)
        project = in_proj.operator(x, tokens, (whole(channels), whole(gate), whole(time_steps)))
        convolve = conv.operator(step, channels)
        scan = self._scan().operator(step, (whole(convolve.output), whole(time_steps)))
        gating = self._gate(tokens, scan.output, gate)
        out = _linear(self, "out_proj", self.inner, self.hidden, bias=self.out_bias).operator(gating.output, tokens)
        return (project, convolve, scan, gating, out)

    def _gate(self, tokens: Count, y: Tensor, gate: Tensor) -> Operator:
        """The output times the activated gate, with a norm or without."""
        if self.normed:
            return gated_norm(self._norm(), y, gate, tokens, SILU)
        return gated("mixer_gate", (whole(gate), whole(y)), _rows("mixer_gate", tokens, self.inner, y), tokens, SILU)

    def _conv(self) -> ShortConv:
        channels = self.inner + 2 * self.groups * self.state
        return ShortConv(channels=channels, kernel=self.kernel, dtype=self.dtype, bias=self.conv_bias)

    def _scan(self) -> Recurrence:
        time_step_flops = SOFTPLUS.flops + 1.0  # with a bias
        return Recurrence(
            elements=self.inner * self.state,
            width=self.inner,
            rule=StateUpdate.DECAY,
            dtype=self.dtype,
            vector=self.heads * (time_step_flops + DECAY_FLOPS) + self.inner * CHANNEL_FLOPS,
            special=self.heads * (SOFTPLUS.special + 1.0),
            weights=(("A_log", self.heads), ("D", self.heads), ("dt_bias", self.heads)),
        )

    def _norm(self) -> Norm:
        return Norm(
            name="mixer_norm",
            kind=NormKind.RMS,
            width=self.inner / self.groups,
            rows=self.groups,
            parameters=self.inner,
            dtype=self.dtype,
        )


def _linear(mixer: Mamba | Mamba2, name: str, width_in: int, width_out: int, *, bias: bool = False) -> Linear:
    return Linear(name=name, in_features=width_in, out_features=width_out, dtype=mixer.dtype, bias=bias)


def _rows(name: str, tokens: Count, width: int, like: Tensor) -> Tensor:
    return Tensor(name=name, elements=tokens * (1.0 * width), dtype=like.dtype)


SIGMOID = ACTIVATIONS["sigmoid"]
#: Per channel: sigmoids of both gates; decay exp(c r) and its square, 1 - a^2 and its root; c is a parameter.
LRU_CHANNEL_FLOPS = 2 * SIGMOID.flops + 5.0
#: Per channel: exponentials of the sigmoids and the decay, the root.
CHANNEL_SPECIAL = 2 * SIGMOID.special + 2.0


@frozen
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
            vector=self.width * LRU_CHANNEL_FLOPS,
            special=self.width * CHANNEL_SPECIAL,
            weights=(("recurrent_param", self.width),),
        )


@frozen
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


@frozen
class ParallelMixers:
    """A mixer that sums the outputs of two; both keep their states.  Source: Falcon-H1, arXiv 2507.22448."""

    first: Mixer
    second: Mixer

    def states(self) -> tuple[State, ...]:
        """The states of both mixers."""
        return (*self.first.states(), *self.second.states())

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of both mixers, and the sum of their outputs."""
        first, second = self.first.operators(step, x), self.second.operators(step, x)
        return (*first, *second, add("mixer_add", first[-1].output, second[-1].output, step.tokens))
