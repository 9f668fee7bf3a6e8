"""Softmax attention with a further part: differential, dynamic masks, Inkling's short convolutions and biases."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import FeedForward
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.conv import ShortConv
from llmviewer.ops.elementwise import Norm, NormKind, elementwise
from llmviewer.ops.gemm import Linear

Variant = TypeVar("Variant", bound=Attention)

#: Per score that a dynamic mask is added to: one sum; the choice of the kept keys is not counted.
MASK_FLOPS = 1.0
#: Per element of the dynamic mask: softplus, product and exponential.
GATE_FLOPS, GATE_SPECIAL = 5.0, 3.0


def varied(attention: Attention, variant: type[Variant]) -> Variant:
    """A copy of the attention as an instance of `variant`."""
    return variant(**{field.name: getattr(attention, field.name) for field in fields(attention)})


@frozen
class DifferentialAttention(Attention):
    """The difference of two attention maps (arXiv 2410.05258).

    Every query head is applied to both halves of the values, as two calls of a usual attention kernel: its scores and
    its weighted values are computed twice, over the same cache.
    """

    def shape(self, step: Step) -> AttentionShape:
        """Two outputs per query head."""
        return replace(Attention.shape(self, step), heads=2 * self.heads)

    def _after(self, tokens: Count, out: Tensor, before: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """The difference, weighted by four learned vectors; a norm over pairs of heads; the output projection."""
        lambdas = Tensor(name="lambda.weight", elements=4.0 * self.head_dim, dtype=self.dtype, role=Role.WEIGHT)
        y = Tensor(name="attn_difference", elements=out.elements / 2.0, dtype=out.dtype)
        difference = elementwise(y.name, (whole(out), whole(lambdas)), y, tokens, flops=2.0)
        norm = Norm(
            name="attn_group_norm",
            kind=NormKind.RMS,
            width=2 * self.head_dim,
            rows=self.heads / 2,
            parameters=0,
            dtype=self.dtype,
        ).operator(y, tokens)
        return (difference, norm, *Attention._after(self, tokens, norm.output, before))


@frozen
class DynamicMaskAttention(Attention):
    """Attention whose scores have a bias that every key's cached values decide (Doge).

    In contexts over a given length it keeps only the keys of the largest bias; transformers computes all scores
    nonetheless, and so does this.
    """

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The usual operators; before the scores, one bias per key and key-value head from all cached values."""
        plain = Attention.operators(self, step, x)
        at = next(index for index, operator in enumerate(plain) if operator.name == "qk_matmul")
        shape = self.shape(step)
        keys, width = shape.keys(), self.kv_heads * (self.v_dim or self.head_dim)
        values = Tensor(name="v_cache", elements=keys * (1.0 * width), dtype=self.dtype, role=Role.CACHE)
        linear = Linear(
            name="mask_proj",
            in_features=width,
            out_features=self.kv_heads,
            dtype=self.dtype,
            bias=self.projections.qkv_bias,
        ).operator(values, keys)
        a = Tensor(name="A.weight", elements=float(self.kv_heads), dtype=self.dtype, role=Role.WEIGHT)
        y = Tensor(name="dynamic_mask", elements=linear.output.elements, dtype=x.dtype)
        reads = (whole(linear.output), whole(a))
        mask = elementwise(y.name, reads, y, keys, flops=GATE_FLOPS, special=GATE_SPECIAL)
        return (*plain[:at], linear, mask, *plain[at:])

    def shape(self, step: Step) -> AttentionShape:
        """One more sum per score."""
        plain = Attention.shape(self, step)
        return replace(plain, score_flops=plain.score_flops + MASK_FLOPS)


@frozen
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


@frozen
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


@frozen
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
