"""Gemma 3n's alternating updates: several residual streams, of which a layer runs on one and corrects all.

Sources: arXiv 2301.13310; https://github.com/huggingface/transformers, models/gemma3n/modeling_gemma3n.py
"""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import FeedForward
from llmviewer.layers.per_layer_inputs import PerLayerInput
from llmviewer.ops.elementwise import add, elementwise, rms_norm
from llmviewer.ops.gemm import Linear

#: The streams as a layer predicts them from those of the layer before.
PREDICTED = "altup_predicted"
#: Per element of a stream that is given the magnitude of the first: square, sum, two factors.
MAGNITUDE_FLOPS = 4.0


@frozen
class Streams:
    """The `count` residual streams of a model, `hidden` elements wide."""

    count: int
    hidden: int
    dtype: Dtype

    def coefficients(self, step: Step, x: Tensor, part: str, width: int) -> tuple[Operator, ...]:
        """The norm of `x`, the router over the streams with a tanh, and `width` coefficients made from it.

        Prediction and correction share the norm and the router; `part` tells their operators apart.
        """
        norm = rms_norm("altup_router_norm", self.hidden, self.dtype).operator(x, step.tokens)
        router = self._linear("altup_router", self.hidden, self.count).operator(norm.output, step.tokens)
        y = Tensor(name=f"{part}_modalities", elements=router.output.elements, dtype=x.dtype)
        tanh = elementwise(y.name, (whole(router.output),), y, step.tokens, flops=1.0, special=1.0)
        coefs = self._linear(f"{part}_coefs", self.count, width).operator(y, step.tokens)
        return (replace(norm, name=f"{part}_norm"), replace(router, name=f"{part}_router"), tanh, coefs)

    def projections(self, step: Step, x: Tensor, name: str, *, inputs: float) -> tuple[Operator, ...]:
        """A matrix for every stream but the first, each result scaled to the magnitude of the first stream.

        inputs: streams that are read: one for all matrices, or one for each.
        """
        read = replace(x, elements=x.elements * inputs)
        linear = self._linear(name, self.hidden, (self.count - 1) * self.hidden).operator(read, step.tokens)
        y = Tensor(name=f"{name}_scaled", elements=linear.output.elements, dtype=x.dtype)
        reads = (whole(x), whole(linear.output))
        return (linear, elementwise(y.name, reads, y, step.tokens, flops=MAGNITUDE_FLOPS))

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)


@frozen
class Spread:
    """The part after the embedding: inputs per layer, and the other streams made from the embedded tokens."""

    streams: Streams
    inputs: FeedForward

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators of the inputs per layer and of the other streams."""
        return (*self.inputs.operators(step, x), *self.streams.projections(step, x, "altup_projection", inputs=1.0))


@frozen
class Predict:
    """The beginning of a layer: every stream becomes a mixture of all."""

    streams: Streams

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Coefficients from the first stream, and the mixture: count products and sums and one more sum per element."""
        count = self.streams.count
        coefs = self.streams.coefficients(step, x, "altup_prediction", count * count)
        y = Tensor(name=PREDICTED, elements=x.elements * float(count), dtype=x.dtype)
        reads = (Access(Tensor(name=x.name, elements=y.elements, dtype=x.dtype), y.elements), whole(coefs[-1].output))
        return (*coefs, elementwise(PREDICTED, reads, y, step.tokens, flops=2.0 * count + 1.0))


@frozen
class Correct:
    """The end of a layer: its output corrects all streams, and gates the input per layer, which is added to others."""

    streams: Streams
    inputs: PerLayerInput

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Coefficients from the layer's output; correction (subtract, multiply, add); scale; input per layer; sum."""
        count, tokens = self.streams.count, step.tokens
        coefs = self.streams.coefficients(step, x, "altup_correction", count)
        predicted = Tensor(name=PREDICTED, elements=x.elements * float(count), dtype=x.dtype)
        y = Tensor(name="altup_corrected", elements=predicted.elements, dtype=x.dtype)
        reads = (whole(x), whole(predicted), whole(coefs[-1].output))
        correct = elementwise(y.name, reads, y, tokens, flops=3.0)
        weight = Tensor(
            name="altup_scale.weight", elements=float(self.streams.hidden), dtype=self.streams.dtype, role=Role.WEIGHT
        )
        scaled = Tensor(name="altup_scale", elements=x.elements, dtype=x.dtype)
        scale = elementwise(scaled.name, (Access(y, x.elements), whole(weight)), scaled, tokens, flops=1.0)
        branch = self.inputs.branch(step, scaled)
        others = Tensor(name="altup_add", elements=x.elements * (count - 1.0), dtype=x.dtype)
        total = elementwise(
            others.name, (Access(y, others.elements), whole(branch[-1].output)), others, tokens, flops=1.0
        )
        return (*coefs, correct, scale, *branch, total)


@frozen
class Merge:
    """The part before the final norm: the mean of the streams, each but the first after a matrix."""

    streams: Streams

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Matrices, magnitudes and the mean."""
        others = self.streams.count - 1.0
        projections = self.streams.projections(step, x, "altup_unembed_projection", inputs=others)
        y = Tensor(name="altup_mean", elements=x.elements, dtype=x.dtype)
        reads = (whole(x), whole(projections[-1].output))
        return (*projections, elementwise(y.name, reads, y, step.tokens, flops=float(self.streams.count)))


@frozen
class LaurelAttention:
    """A mixer: attention with its norm, beside a residual branch of low rank (LAuReL, arXiv 2411.07501)."""

    attention: Attention
    rank: int

    def states(self) -> tuple[State, ...]:
        """The KV cache of the attention."""
        return self.attention.states()

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Two small matrices, a norm and a sum; attention and its norm; the sum of both, divided by a constant."""
        tokens, hidden, dtype = step.tokens, self.attention.hidden, self.attention.dtype
        left = Linear(name="laurel_left", in_features=hidden, out_features=self.rank, dtype=dtype).operator(x, tokens)
        right = Linear(name="laurel_right", in_features=self.rank, out_features=hidden, dtype=dtype)
        wide = right.operator(left.output, tokens)
        norm = rms_norm("laurel_norm", hidden, dtype).operator(wide.output, tokens)
        beside = add("laurel_add", x, norm.output, tokens)
        attention = self.attention.operators(step, x)
        post = rms_norm("attn_post_norm", hidden, dtype).operator(attention[-1].output, tokens)
        both = add("laurel_sum", post.output, beside.output, tokens, flops=2.0)
        return (left, wide, norm, beside, *attention, post, both)
