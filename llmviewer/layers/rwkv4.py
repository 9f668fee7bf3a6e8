"""RWKV-4 (arXiv 2305.13048): time mixing with a weighted average per channel, and channel mixing.

Both parts mix each token with the one before it, whose normalised input is a state.
"""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator, Role, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import ACTIVATIONS, activate, elementwise, gated
from llmviewer.ops.gemm import Linear
from llmviewer.ops.recurrence import Recurrence, StateUpdate

#: State elements per channel: numerator, denominator and the largest exponent so far.
WKV_STATES = 3
#: Per channel beside the update's 12: two exponents with their maxima and differences, the division.
WKV_FLOPS = 9.0
#: Per channel: two exponentials for the output, two for the state.
WKV_SPECIAL = 4.0
#: Per mixed element: a product each with the token and the one before it, and the sum.
SHIFT_FLOPS = 3.0


@frozen
class TimeMix:
    """A mixer of `width` channels: receptance, key and value of the shifted tokens, average, gate, output.

    Its states include the last input of the layer's ChannelMix, which has `hidden` elements as its own.
    """

    hidden: int
    width: int
    dtype: Dtype

    def states(self) -> tuple[State, ...]:
        """The averages and the last inputs of both parts of the layer."""
        shift = State(name="shift_state", dtype=self.dtype, per_sequence=2.0 * self.hidden)
        return (self._average().state(), shift)

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Token shift, three projections, the average, its gate, output."""
        names = ("key", "value", "receptance")
        shift = token_shift("att_shift", step, x, self.hidden, names)
        key, value, receptance = (
            _linear(f"att_{name}", self.hidden, self.width, self.dtype).operator(write.tensor, step.tokens)
            for name, write in zip(names, shift.writes, strict=False)
        )
        average = self._average().operator(step, (whole(key.output), whole(value.output)))
        y = Tensor(name="mixer_gate", elements=average.output.elements, dtype=x.dtype)
        both = (whole(receptance.output), whole(average.output))
        gating = gated("mixer_gate", both, y, step.tokens, ACTIVATIONS["sigmoid"])
        out = _linear("att_output", self.width, self.hidden, self.dtype).operator(y, step.tokens)
        return (shift, key, value, receptance, average, gating, out)

    def _average(self) -> Recurrence:
        return Recurrence(
            elements=WKV_STATES * self.width,
            width=self.width,
            rule=StateUpdate.DECAY,
            dtype=self.dtype,
            vector=self.width * WKV_FLOPS,
            special=self.width * WKV_SPECIAL,
            weights=(("time_decay", self.width), ("time_first", self.width)),
        )


@frozen
class ChannelMix:
    """A feed-forward part: squared ReLU of the key, value, and a sigmoid gate of the shifted tokens."""

    hidden: int
    intermediate: int
    dtype: Dtype

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Token shift, key, activation, value, receptance, gate."""
        tokens = step.tokens
        shift = token_shift("ffn_shift", step, x, self.hidden, ("key", "receptance"))
        key = _linear("ffn_key", self.hidden, self.intermediate, self.dtype).operator(shift.writes[0].tensor, tokens)
        act = activate("mlp_act", key.output, tokens, ACTIVATIONS["relu2"])
        value = _linear("ffn_value", self.intermediate, self.hidden, self.dtype).operator(act.output, tokens)
        gate = _linear("ffn_receptance", self.hidden, self.hidden, self.dtype).operator(shift.writes[1].tensor, tokens)
        y = Tensor(name="ffn_gate", elements=value.output.elements, dtype=x.dtype)
        both = (whole(gate.output), whole(value.output))
        return (shift, key, act, value, gate, gated("ffn_gate", both, y, tokens, ACTIVATIONS["sigmoid"]))


def token_shift(name: str, step: Step, x: Tensor, width: int, mixes: tuple[str, ...]) -> Operator:
    """The mixtures of each token with the one before it, one per name in `mixes`; keeps a sequence's last token.

    width: elements of a token.
    """
    stored = Tensor(name="shift_state", elements=step.sequences * (1.0 * width), dtype=x.dtype, role=Role.CACHE)
    weights = tuple(
        whole(Tensor(name=f"{name}_{mix}.weight", elements=float(width), dtype=x.dtype, role=Role.WEIGHT))
        for mix in mixes
    )
    outputs = tuple(Tensor(name=f"{name}_{mix}", elements=x.elements, dtype=x.dtype) for mix in mixes)
    flops = SHIFT_FLOPS * len(mixes)
    mixed = elementwise(name, (whole(x), *weights, whole(stored)), outputs[0], step.tokens, flops=flops)
    return replace(mixed, writes=(*map(whole, outputs), whole(stored)))


def _linear(name: str, width_in: int, width_out: int, dtype: Dtype) -> Linear:
    return Linear(name=name, in_features=width_in, out_features=width_out, dtype=dtype)
