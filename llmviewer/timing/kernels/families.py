"""The registry of kernel families, and which of them an operator belongs to."""

from __future__ import annotations

from llmviewer.core.counts import present
from llmviewer.core.ir import Kind, Operator
from llmviewer.ops.attention import AttentionShape
from llmviewer.timing.kernels import attention_decode, attention_prefill, batched, collective, gemm, streaming
from llmviewer.timing.kernels.family import Family

#: name -> family, as profiles call them.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        gemm.FAMILY,
        attention_prefill.FAMILY,
        attention_decode.FAMILY,
        batched.FAMILY,
        streaming.FAMILY,
        collective.FAMILY,
    )
}
#: Families of an operator by its kind; attention has one for prompts and one for decode steps, points differ.
OF_KIND: dict[Kind, tuple[str, ...]] = {
    Kind.GEMM: ("gemm",),
    Kind.ATTENTION: ("attention_prefill", "attention_decode"),
    Kind.COLLECTIVE: ("collective",),
}


def families_of(operator: Operator) -> tuple[str, ...]:
    """Names of the families that price an operator; whatever is not named streams through memory."""
    if operator.kind is Kind.ATTENTION and not isinstance(operator.shape, AttentionShape):
        return ("streaming",)  # adds up what parts of the keys gave
    if operator.kind is Kind.ATTENTION and not present(operator.vector_flops):
        return ("batched",)  # the products of eager attention, their softmax in a kernel of its own
    return OF_KIND.get(operator.kind, ("streaming",))
