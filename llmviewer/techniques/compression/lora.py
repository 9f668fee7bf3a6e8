"""`--lora`: unmerged low-rank adapters of linear layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role, Tensor
from llmviewer.formats.linear import is_linear, is_quantize
from llmviewer.language.grammar import Form
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import ADAPTER_PARTS, GemmShape, Linear
from llmviewer.techniques.technique import Change, Whole, add_pass, technique

#: Name prefixes of linear layers without adapters: experts, and the projection that latent attention absorbs.
UNADAPTED = ("expert_", "kv_b_proj")


@frozen
class Adapters:
    """`count` stored adapters of `rank`.  targets: names of linear layers; empty for all that can have adapters."""

    rank: float
    count: float = 1.0
    targets: tuple[str, ...] = ()

    def distinct(self, sequences: Count) -> Count:
        """Expected distinct adapters if each of B sequences uses one of N uniformly: N (1 - (1 - 1/N)^B)."""
        return self.count * (1.0 - np.power(1.0 - 1.0 / self.count, sequences))


def lora(adapters: Adapters) -> Pass:
    """Compute y = W x + B A x for every target W[n, k]: `<linear>_lora_a` k -> r and `<linear>_lora_b` r -> n.

    `_lora_b` adds to the output of the layer in its epilogue: it reads and writes y, one vector FLOP per element.
    matmul FLOPs 2 tokens r (n + k); 16-bit weights r (n + k) for every stored adapter, of which a step reads the
    distinct ones of its sequences.  Adapters have 16-bit inputs for any format of the base weights (QLoRA).
    Sources: LoRA arXiv 2106.09685; several at once: Punica arXiv 2310.18547, S-LoRA arXiv 2311.03285.
    """

    def change(graph: Graph) -> Graph:
        known = {op.name for block in graph.blocks for op in block.operators if _can_adapt(block, op)}
        for name in adapters.targets:
            if name not in known:
                raise unknown("target of --lora", name, known)
        targets = frozenset(adapters.targets or known)
        active = adapters.distinct(_sequences(graph))
        return graph.map_blocks(lambda block: _with_adapters(block, targets, adapters, active))

    return change


def _can_adapt(block: Block, operator: Operator) -> bool:
    return block.is_layer and is_linear(operator) and not operator.name.startswith(UNADAPTED)


def _sequences(graph: Graph) -> Count:
    """Number of sequences of the step, from an attention kernel; otherwise one per row of logits."""
    for _, operator in graph:
        if isinstance(operator.shape, AttentionShape):
            return total(group.batch_size for group in operator.shape.groups)
    products = (op.shape for op in graph.blocks[-1].operators if isinstance(op.shape, GemmShape))
    return next(products).m


def _with_adapters(block: Block, targets: frozenset[str], adapters: Adapters, active: Count) -> Block:
    """The block with both adapter products after every target."""
    plain = block.operators[0].reads[0].tensor.dtype  # dtype of the residual stream
    unquantized = {op.output.name: op.reads[0].tensor for op in block.operators if is_quantize(op)}
    operators: list[Operator] = []
    for operator in block.operators:
        operators.append(operator)
        if _can_adapt(block, operator) and operator.name in targets:
            source = operator.reads[0]
            x = Access(unquantized.get(source.tensor.name, source.tensor), source.elements)
            operators += _adapter_products(operator, x, plain, adapters, active)
    return replace(block, operators=tuple(operators))


def _adapter_products(
    operator: Operator, x: Access, plain: Dtype, adapters: Adapters, active: Count
) -> tuple[Operator, Operator]:
    """The products with A and B of one target; B adds to the output of the target."""
    shape = operator.shape
    assert isinstance(shape, GemmShape)
    a = Linear(
        name=f"{operator.name}{ADAPTER_PARTS[0]}",
        in_features=shape.k,
        out_features=adapters.rank,
        dtype=plain,
        experts=adapters.count,
    ).operator(Tensor(name=x.tensor.name, elements=x.elements, dtype=plain), shape.m, active=active)
    b = Linear(
        name=f"{operator.name}{ADAPTER_PARTS[1]}",
        in_features=adapters.rank,
        out_features=shape.n,
        dtype=plain,
        experts=adapters.count,
    ).operator(a.output, shape.m, operator.writes, active=active)
    a = replace(a, reads=(x, *a.reads[1:]))
    written = tuple(access for access in operator.writes if access.tensor.role is not Role.WEIGHT)
    return a, replace(b, reads=(*b.reads, *written), vector_flops=total(access.elements for access in written))


def read_targets(text: str) -> tuple[str, ...]:
    """Parse `q_proj+v_proj`; none for `all`."""
    return () if text == "all" else tuple(name.strip() for name in text.split("+"))


@technique(
    "lora",
    kind="compression",
    formula="per target W[n,k]: FLOPs 2 tokens r (n + k) + tokens n; 16-bit weights r (n + k), N of them stored, "
    "N (1 - (1 - 1/N)^B) read",
    source="LoRA arXiv 2106.09685, Punica arXiv 2310.18547, S-LoRA arXiv 2311.03285",
    example="llama-2-7b --hardware a6000 --batch-size 16 --lora rank=16,adapters=8",
)
def lora_option(
    rank: Annotated[float, Whole("rank of every adapter", 1, 1e5)],
    *,
    adapters: Annotated[float, Whole("adapters that are stored; every sequence uses one", 1, 1e6)] = 1.0,
    targets: Annotated[
        tuple[str, ...], Form(help="linear layers with adapters, joined by +", parse=read_targets, unset="all")
    ] = (),
    typed: str,
) -> Change:
    """Runs unmerged low-rank adapters in parallel to linear layers; a batch may use several of them."""
    return add_pass(f"lora({typed})", lambda _: lora(Adapters(rank=rank, count=adapters, targets=targets)))
