"""Layers of Inkling: short convolutions of keys, values and outputs, and learned biases for relative positions.

Source: https://github.com/huggingface/transformers, models/inkling/modeling_inkling.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import FeedForward
from llmviewer.ops.conv import ShortConv
from llmviewer.ops.gemm import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedConv:
    """A depthwise convolution over the last `kernel` tokens, without activation, added to its input."""

    name: str
    channels: int
    kernel: int
    dtype: Dtype

    @property
    def _conv(self) -> ShortConv:
        return ShortConv(channels=self.channels, kernel=self.kernel, dtype=self.dtype)

    def state(self) -> State:
        """The last `kernel` columns of a sequence."""
        return replace(self._conv.state(), name=f"{self.name}_state")

    def operator(self, step: Step, x: Tensor) -> Operator:
        """The convolution and the sum with its input: 2 x kernel and 1 FLOP per channel and token."""
        plain = self._conv.operator(step, x)
        reads = tuple(self._named(access) if access.tensor is not x else access for access in plain.reads)
        writes = tuple(map(self._named, plain.writes))
        rows = step.tokens * (1.0 * self.channels)
        return replace(plain, name=self.name, reads=reads, writes=writes, vector_flops=rows, special_ops=0.0)

    def _named(self, access: Access) -> Access:
        tensor = access.tensor
        return Access(tensor.called(tensor.name.replace("conv", self.name, 1)), access.elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedAttention:
    """Attention whose keys, values and output pass a convolution each.

    A projection of d_rel elements per head times a table gives every score a bias for up to `extent` distances.
    """

    attention: Attention
    d_rel: int
    extent: int
    kernel: int

    def _convs(self) -> tuple[AddedConv, ...]:
        """Convolutions of keys, values, and the outputs of attention and of the feed-forward part."""
        attention = self.attention
        kv, hidden = attention.kv_heads * attention.head_dim, attention.hidden
        widths = {"k_conv": kv, "v_conv": kv, "attn_conv": hidden, "mlp_conv": hidden}
        return tuple(
            AddedConv(name=name, channels=width, kernel=self.kernel, dtype=attention.dtype)
            for name, width in widths.items()
        )

    def states(self) -> tuple[State, ...]:
        """The KV cache, and the states of all four convolutions of the layer."""
        return (*self.attention.states(), *(conv.state() for conv in self._convs()))

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Attention with convolutions after the projections of keys and values and at the end, and biases of scores."""
        base = self.attention.operators(step, x)
        keys, values, after, _ = self._convs()
        at = next(number for number, operator in enumerate(base) if operator.name == "v_proj") + 1
        inner = tuple(
            conv.operator(step, Tensor(name=name, elements=step.tokens * (1.0 * conv.channels), dtype=x.dtype))
            for conv, name in ((keys, "k_proj"), (values, "v_proj"))
        )
        return (*base[:at], *inner, *self._biases(step, x), *base[at:], after.operator(step, base[-1].output))

    def _biases(self, step: Step, x: Tensor) -> tuple[Operator, Operator]:
        heads, dtype = self.attention.heads, self.attention.dtype
        into = Linear(name="rel_proj", in_features=self.attention.hidden, out_features=heads * self.d_rel, dtype=dtype)
        relative = into.operator(x, step.tokens)
        table = Linear(name="rel_logits", in_features=self.d_rel, out_features=self.extent, dtype=dtype)
        return relative, table.operator(relative.output, step.tokens * (1.0 * heads))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedPart:
    """A feed-forward part with a stored scale and a convolution after it, whose state the mixer of the layer keeps."""

    part: FeedForward
    conv: AddedConv

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the part, and the scaled convolution."""
        operators = self.part.operators(step, x)
        after = self.conv.operator(step, operators[-1].output)
        scale = Tensor(name="global_scale.weight", elements=1.0, dtype=self.conv.dtype, role=Role.WEIGHT)
        work = after.vector_flops + after.output.elements
        return (*operators, replace(after, reads=(*after.reads, whole(scale)), vector_flops=work))
