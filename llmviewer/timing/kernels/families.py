"""The registry of kernel families, and the families that price an operator."""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import present
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape, is_adapter, is_routed
from llmviewer.timing.kernels import attention_decode, attention_prefill, batched, collective, experts, gemm, streaming
from llmviewer.timing.kernels.family import Family

#: Name in profiles -> family.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        gemm.FAMILY,
        experts.FAMILY,
        attention_prefill.FAMILY,
        attention_decode.FAMILY,
        batched.FAMILY,
        streaming.FAMILY,
        collective.FAMILY,
    )
}


def families_of(operator: Operator) -> tuple[str, ...]:
    """Names of the families that price an operator, by its kind."""
    if _works_on_rows_of_experts(operator):
        return ("experts",)
    if operator.role is OperatorRole.INDEX_SCORES:
        return ("batched",)
    if operator.kind is Kind.ATTENTION and not isinstance(operator.shape, AttentionShape):
        return ("streaming",)  # sums the partial results of split keys
    if operator.kind is Kind.ATTENTION and not present(operator.vector_flops):
        return ("batched",)  # products of eager attention, whose softmax is a separate kernel
    return operator.kind.facts.families


def _works_on_rows_of_experts(operator: Operator) -> bool:
    """Whether the operator is a grouped product, or elementwise work between or after the products of experts.

    Adapters are no experts: their kernels look up the weights of every row, which nothing has to sort first (Punica).
    """
    if isinstance(operator.shape, GemmShape):
        grouped = bool(np.any(operator.shape.experts > 1.0)) and not is_adapter(operator)
        return is_routed(operator) or grouped
    return operator.kind is Kind.ELEMENTWISE and is_routed(operator)
