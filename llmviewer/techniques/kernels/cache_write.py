"""The kernel of engines that writes new keys and values to the cache, after projections, norms and rope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Block, Graph, Operator, Role, Tensor
from llmviewer.core.kinds import Kind, OperatorRole

NAME = "cache_write"


def cache_write(graph: Graph) -> Graph:
    """Write the new entries of the KV cache by one kernel of each layer with attention.

    Without it, the operators that compute keys, values and latents write them to the cache.  With it, they write
    activations, which the kernel reads.  It adds a write and a read of the new entries; the bytes written to the cache
    are the same.  Rope and attention of one kernel write the cache themselves, as in TensorRT-LLM.
    Source: reshape_and_cache_flash, concat_and_cache_mla in
    https://github.com/vllm-project/vllm/blob/main/csrc/cache_kernels.cu
    """
    return graph.map_blocks(_with_kernel)


def _with_kernel(block: Block) -> Block:
    writers = [at for at, op in enumerate(block.operators) if _entries(op)]
    if not writers or not any(op.role is OperatorRole.ATTENTION for op in block.operators):
        return block
    changed = list(block.operators)
    for at in writers:
        if changed[at].kind is Kind.ATTENTION:
            return block
        changed[at] = _writing_activations(changed[at], _widest(block.operators[: writers[-1] + 1]))
    stored = tuple(access for at in writers for access in _entries(block.operators[at]))
    new = tuple(access for at in writers for access in changed[at].writes if access.tensor.name.startswith("new_"))
    changed.insert(writers[-1] + 1, _kernel(block.operators[writers[-1]], new, stored))
    return replace(block, operators=tuple(changed))


def _entries(operator: Operator) -> tuple[Access, ...]:
    return tuple(access for access in operator.writes if access.tensor.role is Role.CACHE)


def _widest(operators: tuple[Operator, ...]) -> Dtype:
    """The widest format of activations: that of products, norms and rope, whose inputs may be quantized."""
    accesses = (access for op in operators for access in (*op.reads, *op.writes))
    return max((a.tensor.dtype for a in accesses if a.tensor.role is Role.ACTIVATION), key=lambda dtype: dtype.bits)


def _writing_activations(operator: Operator, dtype: Dtype) -> Operator:
    """The operator that writes its entries as activations of a format."""

    def activation(access: Access) -> Access:
        if access.tensor.role is not Role.CACHE:
            return access
        name = f"new_{access.tensor.name}_of_{operator.name}"
        return Access(Tensor(name=name, elements=access.elements, dtype=dtype), access.elements)

    return replace(operator, writes=tuple(map(activation, operator.writes)))


def _kernel(last: Operator, new: tuple[Access, ...], stored: tuple[Access, ...]) -> Operator:
    """The copy of new entries, by one row per token."""
    tokens = last.output_shape[0]
    width = total(access.elements for access in stored) / np.maximum(tokens, 1.0)
    return Operator(
        name=NAME, kind=Kind.ELEMENTWISE, reads=new, writes=stored, output_shape=(tokens, width), where=last.where
    )
