"""`--contextual-sparsity`: every token uses only heads and feed-forward columns chosen by a predictor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role, Tensor, whole
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import Group
from llmviewer.formats.linear import is_weight_matrix
from llmviewer.ops.attention import AttentionShape
from llmviewer.techniques.scaling import scale_moved, with_probability
from llmviewer.techniques.sparsity.predictor import predictor
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, parse_numbers

WHERE = "--contextual-sparsity"
#: Roles of the kernels of eager attention.
CORE = (OperatorRole.SCORES, OperatorRole.SOFTMAX, OperatorRole.WEIGHTED_VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparsity:
    """Shares of the heads and of the columns that a token uses, and the width of the predictors (0: no predictor).

    The hidden layer of Deja Vu's predictors has 1000 elements:
    https://github.com/FMInference/DejaVu/blob/master/sparse_predictor/main_mlp.py (--D).
    """

    attention: float = 1.0
    mlp: float = 1.0
    predictor: float = 1000.0


def contextual_sparsity(sparsity: Sparsity) -> Pass:
    """Let a token use a share rho of the heads and of the MLP columns; a step runs the union over its tokens.

    Tokens choose independently, so T tokens use 1 - (1 - rho)^T of a matrix: this share is read, and multiplied for all
    T (a matrix unit cannot skip a column for single rows).  One token costs rho; a prefill costs everything plus the
    predictor.  q_proj, o_proj and the feed-forward matrices are sparse; K and V are computed for all heads because a
    later token may use any.  Attention runs the heads used by the n new tokens of a sequence, 1 - (1 - rho)^n, and
    reads the KV heads used by any of their g queries, 1 - (1 - rho)^(g n).  Work between the matrices and all experts
    are unchanged.  A two-layer predictor precedes each part: 2 tokens width (hidden + heads or columns) FLOP.
    Must run before number formats: weights that are not read are not converted.  Source: Deja Vu, arXiv 2310.17157.
    """

    def change(graph: Graph) -> Graph:
        blocks = graph.blocks
        if sparsity.attention < 1.0:
            blocks = _change_blocks(
                blocks,
                OperatorRole.QUERY,
                lambda block: _sparse_heads(block, sparsity),
                "attention with separate heads",
            )
        if sparsity.mlp < 1.0:
            blocks = _change_blocks(
                blocks,
                OperatorRole.FEED_FORWARD_INPUT,
                lambda block: _sparse_columns(block, sparsity),
                "dense feed-forward part",
            )
        return replace(graph, blocks=blocks)

    return change


def union_share(share: Count, tokens: Count) -> Count:
    """Share used by any of `tokens` tokens that each use `share` independently: 1 - (1 - share)^tokens."""
    return 1.0 - np.power(1.0 - share, tokens)


def _change_blocks(
    blocks: tuple[Block, ...], first: OperatorRole, change: Callable[[Block], Block], what: str
) -> tuple[Block, ...]:
    found = tuple(any(op.role is first for op in b.operators) and _can_skip(b, first) for b in blocks)
    if not any(found):
        raise UserError(f"{WHERE}: this model has no {what}")
    return tuple(change(block) if there else block for block, there in zip(blocks, found, strict=True))


def _can_skip(block: Block, first: OperatorRole) -> bool:
    """Whether heads can be skipped: not in latent attention, whose heads share one latent, and not in lightning
    attention, which has no cache of keys."""
    roles = {op.role for op in block.operators}
    separate = OperatorRole.SCORES in roles and OperatorRole.LATENT_EXPANSION not in roles
    return first is not OperatorRole.QUERY or separate


def _sparse_heads(block: Block, sparsity: Sparsity) -> Block:
    operators: list[Operator] = []
    mask: Tensor | None = None
    for op in block.operators:
        shape = op.shape
        if op.role is OperatorRole.QUERY:
            heads = next(o.shape.heads for o in block.operators if isinstance(o.shape, AttentionShape))
            scores = predictor("attn", block, op, heads, sparsity.predictor)
            mask = scores[-1].output if scores else None
            queries = op.writes[0].elements / sum(access.elements for access in op.writes)
            share = union_share(sparsity.attention, op.output_shape[0])
            operators += (*scores, _partial_product(op, 1.0 - queries + queries * share))
        elif op.role is OperatorRole.ATTENTION_OUTPUT:
            operators.append(_partial_product(op, union_share(sparsity.attention, op.output_shape[0])))
        elif isinstance(shape, AttentionShape) and op.role in CORE:
            operators.append(
                _partial_attention(op, shape, sparsity.attention, mask if op.role is OperatorRole.SOFTMAX else None)
            )
        else:
            operators.append(op)
    return replace(block, operators=tuple(operators))


def _partial_attention(op: Operator, shape: AttentionShape, share: float, mask: Tensor | None) -> Operator:
    """One of the three eager kernels for the heads in use; it reads keys and values of the KV heads in use."""
    group_size = shape.heads / shape.kv_heads
    work = _weighted_mean(shape, lambda g: g.tokens * g.keys(shape.window), lambda g: union_share(share, g.new_tokens))
    keys = _weighted_mean(
        shape, lambda g: g.batch_size * g.keys(shape.window), lambda g: union_share(share, g.new_tokens * group_size)
    )
    sparse = with_probability(op, work)
    reads = tuple(
        Access(before.tensor, before.elements * keys) if before.tensor.role is Role.CACHE else after
        for before, after in zip(op.reads, sparse.reads, strict=True)
    )
    if mask is not None:
        reads = (*reads, whole(mask))
    return replace(sparse, reads=reads, shape=replace(shape, used=work))


def _weighted_mean(shape: AttentionShape, weight: Callable[[Group], Count], value: Callable[[Group], Count]) -> Count:
    """Mean of `value` over the groups of a step, weighted by `weight`."""
    if len(shape.groups) == 1:
        return value(shape.groups[0])
    return sum(weight(g) * value(g) for g in shape.groups) / sum(weight(g) for g in shape.groups)


def _sparse_columns(block: Block, sparsity: Sparsity) -> Block:
    operators: list[Operator] = []
    mask: Tensor | None = None
    for op in block.operators:
        share = union_share(sparsity.mlp, op.output_shape[0])
        if op.role is OperatorRole.FEED_FORWARD_INPUT:
            if mask is None:
                down = next(o for o in block.operators if o.role is OperatorRole.FEED_FORWARD_OUTPUT)
                scores = predictor("mlp", block, op, down.shape.k, sparsity.predictor)  # type: ignore[attr-defined]
                mask = scores[-1].output if scores else None
                operators += scores
            operators.append(_partial_product(op, share))
        elif op.role is OperatorRole.FEED_FORWARD_OUTPUT:
            operators.append(_partial_product(op, share))
        elif op.role is OperatorRole.ACTIVATION and mask is not None:
            operators.append(replace(op, reads=(*op.reads, whole(mask))))
        else:
            operators.append(op)
    return replace(block, operators=tuple(operators))


def _partial_product(operator: Operator, share: Count) -> Operator:
    """A matrix product with `share` of its matrix; the whole bias is added."""
    reads = tuple(scale_moved(a, share) if is_weight_matrix(a) else a for a in operator.reads)
    return replace(operator, reads=reads, matmul_flops=operator.matmul_flops * share)


_PARAMETERS = (
    Parameter(name="attention", default=1.0, low=0.0001, high=1.0),
    Parameter(name="mlp", default=1.0, low=0.0001, high=1.0),
    Parameter(name="predictor", default=1000.0, high=1e6, whole=True),
)


def _make(text: str) -> Change:
    sparsity = Sparsity(**parse_numbers(WHERE, text, _PARAMETERS))
    if sparsity.attention == sparsity.mlp == 1.0:
        return lambda system: system
    name = f"contextual_sparsity(attention={sparsity.attention:g}, mlp={sparsity.mlp:g})"
    sparse = add_pass(name, lambda _: contextual_sparsity(sparsity))

    def change(system: System) -> System:
        if system.applies("low_rank"):
            raise UserError(f"{WHERE}: the factors of --low-rank have no heads or columns that could be skipped")
        return sparse(system)

    return change


TECHNIQUE = Technique(
    name="contextual_sparsity",
    kind="sparsity",
    summary="A token uses only heads and feed-forward columns chosen by a predictor; the gain shrinks as the batch "
    "grows.",
    parameters={
        "attention": "share of the heads that a token uses; default 1",
        "mlp": "share of the feed-forward columns that a token uses; default 1",
        "predictor": "width of the predictor; default 1000, 0 for no predictor",
    },
    formula="weights read and multiplied x (1 - (1 - rho)^T); predictor 2 T width (hidden + outputs) FLOP per part, "
    "width 1000",
    source="Deja Vu arXiv 2310.17157; width: https://github.com/FMInference/DejaVu (sparse_predictor, --D)",
    example="llmviewer analyze opt-66b --hardware a100 --contextual-sparsity attention=0.5,mlp=0.1 --no-fit-check",
    make=_make,
)
