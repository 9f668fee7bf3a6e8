"""Gemma 4's per-layer inputs: a small second embedding that every layer reads in addition to the residual stream.

Source: https://github.com/huggingface/transformers, models/gemma4/modeling_gemma4.py
"""

from __future__ import annotations

from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.ops.elementwise import Activation, add, elementwise, embedding, gated, rms_norm
from llmviewer.ops.gemm import Linear

PER_LAYER_INPUTS = "per_layer_inputs"


@frozen
class PerLayerEmbedding:
    """Inputs of `layers` layers, `width` elements each: rows of a second table plus a projection of the embedding."""

    vocabulary: int
    layers: int
    width: int
    hidden: int
    dtype: Dtype

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """Look-up and scale; projection, scale and norm per layer; sum and scale.  x: the embedded tokens."""
        tokens, wide = step.tokens, self.layers * self.width
        elements = float(self.vocabulary) * wide
        table = Tensor(name="per_layer_embedding.weight", elements=elements, dtype=self.dtype, role=Role.WEIGHT)
        rows = Tensor(name="per_layer_embedding", elements=tokens * (1.0 * wide), dtype=x.dtype)
        look_up = embedding("per_layer_embedding", (table,), rows, tokens, flops=1.0)
        linear = Linear(name="per_layer_model_projection", in_features=self.hidden, out_features=wide, dtype=self.dtype)
        project = linear.operator(x, tokens)
        norm = rms_norm("per_layer_projection_norm", self.width, self.dtype, rows=self.layers).operator(
            project.output, tokens
        )
        y = Tensor(name=PER_LAYER_INPUTS, elements=norm.output.elements, dtype=norm.output.dtype)
        both = elementwise(PER_LAYER_INPUTS, (whole(norm.output), whole(rows)), y, tokens, flops=2.0)
        return (look_up, project, norm, both)


@frozen
class PerLayerInput:
    """The end of a layer: the residual stream gates the per-layer input, which is projected, normalised and added.

    A scale of the stream follows.  width: 0 if the model has no per-layer inputs; then only the scale remains.
    """

    layers: int
    width: int
    hidden: int
    activation: Activation
    dtype: Dtype

    def operators(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators at the end of a layer.  x: the residual stream."""
        branch: tuple[Operator, ...] = ()
        if self.width:
            branch = self.branch(step, x)
            branch += (add("per_layer_add", x, branch[-1].output, step.tokens),)
        out = branch[-1].output if branch else x
        y = Tensor(name="layer_scale", elements=x.elements, dtype=x.dtype)
        return (*branch, elementwise("layer_scale", (whole(out),), y, step.tokens, flops=1.0))

    def branch(self, step: Step, x: Tensor) -> tuple[Operator, ...]:
        """The operators up to the sum: gate, activation, projection and norm."""
        tokens = step.tokens
        inputs = Tensor(name=PER_LAYER_INPUTS, elements=tokens * (1.0 * self.layers * self.width), dtype=x.dtype)
        gate = self._linear("per_layer_input_gate", self.hidden, self.width).operator(x, tokens)
        y = Tensor(name="per_layer_act", elements=gate.output.elements, dtype=x.dtype)
        act = gated("per_layer_act", (whole(gate.output), Access(inputs, y.elements)), y, tokens, self.activation)
        project = self._linear("per_layer_projection", self.width, self.hidden).operator(y, tokens)
        norm = rms_norm("per_layer_input_norm", self.hidden, self.dtype).operator(project.output, tokens)
        return (gate, act, project, norm)

    def _linear(self, name: str, width_in: int, width_out: int) -> Linear:
        return Linear(name=name, in_features=width_in, out_features=width_out, dtype=self.dtype)
