"""Short causal depthwise convolutions over tokens, which recurrent mixers apply before their state."""

from __future__ import annotations

from dataclasses import field

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import ACTIVATIONS, Activation

#: The activation that most mixers apply to the output, in the same kernel (causal-conv1d).
SILU = ACTIVATIONS["silu"]
#: No activation (the gated convolutions of LFM2, the RG-LRU of Griffin).
IDENTITY = Activation(0.0, 0.0)


@frozen(eq=False)
class ShortConv:
    """A depthwise convolution over the last `kernel` tokens, then an activation.

    The state has `kernel` columns per sequence, as in published code (kernel - 1 would suffice).
    Source: Mamba, arXiv 2312.00752, section 3.4; https://github.com/Dao-AILab/causal-conv1d
    """

    channels: int
    kernel: int
    dtype: Dtype
    bias: bool = False
    activation: Activation = SILU
    weight: Tensor = field(init=False)
    bias_weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        elements = float(self.channels) * self.kernel
        weight = Tensor(name="conv.weight", elements=elements, dtype=self.dtype, role=Role.WEIGHT)
        bias = Tensor(name="conv.bias", elements=float(self.channels), dtype=self.dtype, role=Role.WEIGHT)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias_weight", bias)

    def state(self) -> State:
        """The state: the last `kernel` columns of a sequence."""
        return State(name="conv_state", dtype=self.dtype, per_sequence=float(self.channels) * self.kernel)

    def operator(self, step: Step, x: Tensor) -> Operator:
        """The convolution: 2 x kernel FLOP per channel and token; the state is read and written once per sequence."""
        rows = step.tokens * (1.0 * self.channels)
        stored = step.sequences * self.state().per_sequence
        state = Tensor(name="conv_state", elements=stored, dtype=self.dtype, role=Role.CACHE)
        weights = (whole(self.weight), *((whole(self.bias_weight),) if self.bias else ()))
        return Operator(
            name="conv",
            kind=Kind.CONV,
            reads=(whole(x), *weights, whole(state)),
            writes=(whole(Tensor(name="conv", elements=rows, dtype=x.dtype)), whole(state)),
            output_shape=(step.tokens, self.channels),
            conv_flops=rows * (2.0 * self.kernel),
            vector_flops=rows * (self.activation.flops + float(self.bias)),
            special_ops=rows * self.activation.special,
        )
