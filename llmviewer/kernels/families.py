"""The registry of kernel families, and which of them an operator belongs to."""

from __future__ import annotations

from llmviewer.ir import Kind, Operator
from llmviewer.kernels import attention, collective, gemm, streaming
from llmviewer.kernels.family import Family

#: name -> family, as profiles call them.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (gemm.FAMILY, attention.PREFILL, attention.DECODE, streaming.FAMILY, collective.FAMILY)
}
#: Families of an operator by its kind; attention has one for prompts and one for decode steps, points differ.
OF_KIND: dict[Kind, tuple[str, ...]] = {
    Kind.GEMM: ("gemm",),
    Kind.ATTENTION: ("attention_prefill", "attention_decode"),
    Kind.COLLECTIVE: ("collective",),
}


def families_of(operator: Operator) -> tuple[str, ...]:
    """Names of the families that price an operator; whatever is not named streams through memory."""
    return OF_KIND.get(operator.kind, ("streaming",))
