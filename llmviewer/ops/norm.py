"""Normalisation over the last axis."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.elementwise import Activation


class NormKind(Enum):
    """Kinds of norms, with their FLOP per element (docs/reference/conventions.md)."""

    RMS = 7.0
    LAYER = 8.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
