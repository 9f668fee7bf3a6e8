"""Memory-bound operators: norms, activations, residual sums, rotary embeddings, conversions, look-ups of rows."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole


@frozen(kw_only=False)
class Activation:
    """FLOP per output element of an activation, and how many of them are exponentials (tanh and erf count as one)."""

    flops: float
    special: float


#: SiLU: exponential, negation, addition, division.  GELU: 8 (erf or tanh polynomial with one exponential).
ACTIVATIONS: dict[str, Activation] = {
    "silu": Activation(4.0, 1.0),
    "swish": Activation(4.0, 1.0),
    "sigmoid": Activation(4.0, 1.0),
    "gelu": Activation(8.0, 1.0),
    "gelu_new": Activation(8.0, 1.0),
    "gelu_fast": Activation(8.0, 1.0),
    "gelu_pytorch_tanh": Activation(8.0, 1.0),
    "relu": Activation(1.0, 0.0),
    "relu2": Activation(2.0, 0.0),
    "xielu": Activation(10.0, 1.0),  # both branches and the choice between them (arXiv 2411.13010)
    "softplus": Activation(3.0, 2.0),  # log(1 + exp(x))
    "clamped_silu": Activation(7.0, 1.0),  # DeepSeek-V4: clamps of gate (one side) and up (both)
    "clamped_swiglu": Activation(8.0, 1.0),  # GPT-OSS: two clamps, scaling by alpha, sigmoid, (up + 1)
}


def activation(name: str) -> Activation:
    """The activation called `name` in a config."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def elementwise_as(
    role: OperatorRole, name: str, reads: tuple[Access, ...], y: Tensor, tokens: Count, work: Activation
) -> Operator:
    """An operator of a role with `work` vector FLOP per element of `y`."""
    return Operator(
        name=name,
        kind=Kind.ELEMENTWISE,
        role=role,
        reads=reads,
        writes=(whole(y),),
        output_shape=(tokens, y.elements / np.maximum(tokens, 1.0)),  # a chunk has no rows of logits
        vector_flops=y.elements * work.flops,
        special_ops=y.elements * work.special if work.special else 0.0,
    )


def elementwise(
    name: str, reads: tuple[Access, ...], y: Tensor, tokens: Count, *, flops: float, special: float = 0.0
) -> Operator:
    """An operator with `flops` vector FLOP per element of `y`, of which `special` are exponentials."""
    return elementwise_as(OperatorRole.OTHER, name, reads, y, tokens, Activation(flops, special))


def add(name: str, left: Tensor, right: Tensor, tokens: Count, *, flops: float = 1.0) -> Operator:
    """The sum of two tensors: 1 FLOP per element, 2 if the model scales a branch first."""
    y = Tensor(name=name, elements=left.elements, dtype=left.dtype)
    return elementwise_as(OperatorRole.RESIDUAL, name, (whole(left), whole(right)), y, tokens, Activation(flops, 0.0))


def activate(name: str, x: Tensor, tokens: Count, kind: Activation) -> Operator:
    """The activation of a tensor: y = f(x)."""
    y = Tensor(name=name, elements=x.elements, dtype=x.dtype)
    return elementwise_as(OperatorRole.ACTIVATION, name, (whole(x),), y, tokens, kind)


def gated(name: str, reads: tuple[Access, ...], y: Tensor, tokens: Count, kind: Activation) -> Operator:
    """The gated activation y = f(gate) * up; for SiLU 5 FLOP per element of y, including one exponential."""
    work = Activation(kind.flops + 1.0, kind.special)
    return elementwise_as(OperatorRole.ACTIVATION, name, reads, y, tokens, work)


class NormKind(Enum):
    """Kinds of norms, with their FLOP per element (docs/reference/conventions.md)."""

    RMS = 7.0
    LAYER = 8.0


@frozen(eq=False)
class Norm:
    """A norm over `width` elements with `parameters` stored weights (0: none, 2 x width: weight and bias).

    rows: vectors per token (QK-norm: one per head).
    """

    name: str
    kind: NormKind
    width: float
    parameters: float
    dtype: Dtype
    rows: float = 1.0
    role: OperatorRole = OperatorRole.OTHER
    weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        weight = Tensor(name=f"{self.name}.weight", elements=1.0 * self.parameters, dtype=self.dtype, role=Role.WEIGHT)
        object.__setattr__(self, "weight", weight)

    def operator(self, x: Tensor, tokens: Count, writes: tuple[Access, ...] = ()) -> Operator:
        """The normalisation of `tokens` x rows vectors of `width` elements."""
        elements = tokens * (1.0 * self.width * self.rows)
        y = writes or (whole(Tensor(name=self.name, elements=elements, dtype=x.dtype)),)
        weights = (whole(self.weight),) if self.parameters else ()
        return Operator(
            name=self.name,
            kind=Kind.NORM,
            role=self.role,
            reads=(Access(x, elements), *weights),
            writes=y,
            output_shape=(tokens, self.width * self.rows),
            vector_flops=elements * self.kind.value,
        )


def rms_norm(name: str, width: float, dtype: Dtype, *, rows: float = 1.0) -> Norm:
    """RMSNorm with one weight per element (arXiv 1910.07467)."""
    return Norm(name=name, kind=NormKind.RMS, width=width, parameters=width, dtype=dtype, rows=rows)


def layer_norm(name: str, width: float, dtype: Dtype, *, bias: bool = True) -> Norm:
    """LayerNorm with weight and (usually) bias (arXiv 1607.06450)."""
    return Norm(name=name, kind=NormKind.LAYER, width=width, parameters=width * (2 if bias else 1), dtype=dtype)


def bare_rms_norm(name: str, width: float, dtype: Dtype) -> Norm:
    """RMSNorm without weights (nanochat)."""
    return Norm(name=name, kind=NormKind.RMS, width=width, parameters=0, dtype=dtype)


def bare_layer_norm(name: str, width: float, dtype: Dtype) -> Norm:
    """LayerNorm without weights (OLMo)."""
    return Norm(name=name, kind=NormKind.LAYER, width=width, parameters=0, dtype=dtype)


def gated_norm(norm: Norm, x: Tensor, gate: Tensor, tokens: Count, kind: Activation) -> Operator:
    """The product norm(x) * f(gate) in one kernel (Mamba-2, arXiv 2405.21060; gated delta net)."""
    operator = norm.operator(x, tokens)
    elements = operator.output.elements
    return replace(
        operator,
        reads=(*operator.reads, whole(gate)),
        vector_flops=operator.vector_flops + elements * (kind.flops + 1.0),
        special_ops=elements * kind.special,
    )


def embedding(name: str, tables: tuple[Tensor, ...], y: Tensor, tokens: Count, *, flops: float = 0.0) -> Operator:
    """The sum of one row per table and token.  flops: per element of `y` (sums, a scale)."""
    return Operator(
        name=name,
        kind=Kind.EMBEDDING,
        reads=tuple(Access(table, y.elements) for table in tables),
        writes=(whole(y),),
        output_shape=(tokens, y.elements / np.maximum(tokens, 1.0)),  # a chunk has no rows of logits
        vector_flops=y.elements * flops if flops else 0.0,
    )
