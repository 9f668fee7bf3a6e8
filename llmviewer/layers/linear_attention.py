"""Linear attention: a matrix of state per head in place of cached keys (gated delta rule, Kimi, lightning, mLSTM)."""

from __future__ import annotations

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.conv import ShortConv
from llmviewer.ops.elementwise import ACTIVATIONS, Activation, activate, gated, gated_norm, layer_norm, rms_norm
from llmviewer.ops.gemm import Linear
from llmviewer.ops.recurrence import Recurrence, StateUpdate

SILU, SIGMOID, SOFTPLUS = (ACTIVATIONS[name] for name in ("silu", "sigmoid", "softplus"))
#: Per element of queries and keys normalised to unit length: square, add, multiply.
UNIT_LENGTH_FLOPS = 3.0
#: Per head for the decay: bias and softplus of its argument, multiplication by A, exponential.
DECAY_FLOPS = 1.0 + SOFTPLUS.flops + 2.0


@frozen
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


@frozen
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


@frozen
class LightningAttention:
    """A mixer with `heads` states of head_dim x head_dim.  activation: applied to queries, keys and values."""

    hidden: int
    heads: int
    head_dim: int
    activation: Activation
    dtype: Dtype

    @property
    def _width(self) -> int:
        return self.heads * self.head_dim

    def states(self) -> tuple[State, ...]:
        """The recurrent state: the sum of decayed products of keys and values."""
        return (self._rule().state(),)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators: qkv_proj, activation, recurrence, norm over all heads, sigmoid gate of the input, out_proj."""
        tokens = step.tokens
        project = self._linear("qkv_proj", self.hidden, 3 * self._width).operator(x, tokens)
        qkv = activate("qkv_act", project.output, tokens, self.activation)
        recur = self._rule().operator(step, (whole(qkv.output),))
        norm = rms_norm("mixer_norm", self._width, self.dtype).operator(recur.output, tokens)
        gate = self._linear("output_gate", self.hidden, self._width).operator(x, tokens)
        y = Tensor(name="mixer_gate", elements=norm.output.elements, dtype=x.dtype)
        both = (whole(gate.output), whole(norm.output))
        gating = gated("mixer_gate", both, y, tokens, ACTIVATIONS["sigmoid"])
        out = self._linear("out_proj", self._width, self.hidden).operator(y, tokens)
        return (project, qkv, recur, norm, gate, gating, out)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        elements = self._width * self.head_dim
        return Recurrence(
            elements=elements, width=self._width, rule=StateUpdate.DECAY, dtype=self.dtype, vector=0.0, special=0.0
        )


#: Vector FLOP per token and head: soft caps of both gates, the running maximum of the log gates, scales of state and
#: input, and the lower bound of the normalizer.
GATE_FLOPS = 12.0
#: Exponentials per token and head: two soft caps, the log-sigmoid of the forget gate, two scales, the lower bound.
GATE_SPECIAL = 6.0


@frozen
class MatrixLstm:
    """A mixer with a state of key_width / heads x value_width / heads elements per head, a normalizer and a maximum.

    key_width, value_width: over all heads.  The state is kept in 32 bits (`inference_state_dtype`).
    """

    hidden: int
    heads: int
    key_width: int
    value_width: int
    dtype: Dtype

    def states(self) -> tuple[State, ...]:
        """The memory, normalizer and maximum of all heads."""
        return (self._rule().state(),)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Queries, keys, values, output gate, input and forget gates, recurrence, gated norm, out_proj."""
        tokens = step.tokens
        project = self._linear("qkv_proj", 2 * self.key_width + self.value_width).operator(x, tokens)
        out_gate = self._linear("ogate_proj", self.value_width).operator(x, tokens)
        gates = Linear(
            name="ifgate_proj", in_features=self.hidden, out_features=2 * self.heads, dtype=self.dtype, bias=True
        ).operator(x, tokens)
        rule = self._rule().operator(step, (whole(project.output), whole(gates.output)))
        norm = layer_norm("mixer_norm", self.value_width, self.dtype, bias=False)
        normed = gated_norm(norm, rule.output, out_gate.output, tokens, SIGMOID)
        last = Linear(name="out_proj", in_features=self.value_width, out_features=self.hidden, dtype=self.dtype)
        return (project, out_gate, gates, rule, normed, last.operator(normed.output, tokens))

    def _linear(self, name: str, width: int) -> Linear:
        return Linear(name=name, in_features=self.hidden, out_features=width, dtype=self.dtype)

    def _rule(self) -> Recurrence:
        memory = self.key_width * self.value_width // self.heads
        return Recurrence(
            elements=memory + self.key_width + self.heads,
            width=self.value_width,
            rule=StateUpdate.DECAY,
            dtype=DTYPES["fp32"],
            vector=self.value_width + self.heads * GATE_FLOPS,
            special=self.heads * GATE_SPECIAL,
        )
