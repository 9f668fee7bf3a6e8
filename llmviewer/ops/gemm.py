"""Linear layers: one matrix multiplication with weights."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.dtypes import Dtype, operand_class
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Graph, Operator, Role, Tensor, whole
from llmviewer.core.kinds import Kind, OperatorRole

#: Prefix of the names of operators that work on rows of routed experts.
EXPERT_PREFIX = "expert_"
#: Ends of the names of the two products of an adapter, with A and with B.
ADAPTER_PARTS = ("_lora_a", "_lora_b")


@frozen(eq=False)
class GemmShape:
    """The product y[m, n] = x[m, k] @ w[k, n]; `experts` > 1 is a grouped GEMM that reads `active` experts.

    popularity: probability that a token chooses each expert, most popular first; None if all are equal.
    converts: 1.0 for an engine's whole linear layer, launched by its host, that quantizes its own 8-bit input (as in
    measured tables); in a graph the conversion is a separate operator.
    stamped: 1.0 for one launch between two time stamps, whose recording it includes (as in measured tables).
    parts: products of one input that kernels of experts run as one (gate and up), of which this is one.
    routed: rows of all devices of an expert-parallel group, which each device sorts; None if all rows are its own.
    runs: number of runs of tokens whose choices of experts are related, and tokens of each, by group (Group.runs).
    unrelated: tokens that use as many experts if they choose without regard to each other; None if all of them do.
    skipped: share of the depth that kernels save by skipping zeros (2:4 sparsity).
    """

    m: Count
    n: float
    k: float
    experts: float = 1.0
    active: Count = 1.0
    popularity: Array | None = None
    converts: float = 0.0
    stamped: float = 0.0
    parts: float = 1.0
    routed: Count | None = None
    runs: tuple[tuple[Count, Count], ...] = ()
    unrelated: Count | None = None
    skipped: float = 0.0

    @property
    def matrices(self) -> Count:
        """Number of matrices that the rows are divided among: experts in use, at least one."""
        return np.maximum(self.active, 1.0) if self.experts > 1.0 else 1.0

    @property
    def depth(self) -> float:
        """The depth whose products take time on the matrix units."""
        return self.k * (1.0 - self.skipped) if self.skipped else self.k


@frozen(eq=False)
class Linear:
    """One weight matrix [in_features, out_features] of a checkpoint, with its bias.

    experts: number of such matrices (mixture of experts).  parts: as in GemmShape.
    """

    name: str
    in_features: float
    out_features: float
    dtype: Dtype
    bias: bool = False
    experts: float = 1.0
    parts: float = 1.0
    role: OperatorRole = OperatorRole.OTHER
    weight: Tensor = field(init=False)
    bias_weight: Tensor = field(init=False)

    def __post_init__(self) -> None:
        elements = 1.0 * self.in_features * self.out_features * self.experts
        bias_elements = 1.0 * self.out_features * self.experts
        weight = Tensor(name=f"{self.name}.weight", elements=elements, dtype=self.dtype, role=Role.WEIGHT)
        bias = Tensor(name=f"{self.name}.bias", elements=bias_elements, dtype=self.dtype, role=Role.WEIGHT)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias_weight", bias)

    def operator(self, x: Tensor, tokens: Count, writes: tuple[Access, ...] = (), active: Count = 1.0) -> Operator:
        """The product of `tokens` rows: 2 x tokens x in x out matmul FLOP, and tokens x out vector FLOP for a bias.

        writes: the output if it is not one activation (a cache, several tensors).
        active: distinct experts whose weights are read.
        """
        rows = tokens * (1.0 * self.out_features)
        y = writes or (whole(Tensor(name=self.name, elements=rows, dtype=x.dtype)),)
        moved = active / self.experts
        reads = [whole(x), Access(self.weight, self.weight.elements * moved)]
        if self.bias:
            reads.append(Access(self.bias_weight, self.bias_weight.elements * moved))
        return Operator(
            name=self.name,
            kind=Kind.GEMM,
            role=self.role,
            reads=tuple(reads),
            writes=y,
            output_shape=(tokens, self.out_features),
            compute=operand_class(x.dtype, self.dtype),
            matmul_flops=tokens * (2.0 * self.in_features * self.out_features),
            vector_flops=rows if self.bias else 0.0,
            shape=GemmShape(
                m=tokens,
                n=self.out_features,
                k=self.in_features,
                experts=self.experts,
                active=active,
                parts=self.parts,
            ),
        )


def is_routed(operator: Operator) -> bool:
    """Whether the operator works on rows of routed experts; their names begin with EXPERT_PREFIX."""
    return operator.name.startswith(EXPERT_PREFIX)


def is_adapter(operator: Operator) -> bool:
    """Whether the operator is a product of an adapter; its name ends with one of ADAPTER_PARTS."""
    return operator.name.endswith(ADAPTER_PARTS)


def has_routed_experts(graph: Graph) -> bool:
    """Whether a layer of the graph chooses among experts."""
    return any(is_routed(operator) for _, operator in graph)
