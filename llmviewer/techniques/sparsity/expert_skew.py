"""`--expert-skew`: routers that prefer some experts to others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import OperatorRole
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, parse_numbers

_ALPHA = Parameter(name="alpha", low=0.0, high=10.0)


def selection_probabilities(alpha: float, experts: int, chosen: float) -> Array:
    """Probability that each expert is among the `chosen` of one token: min(1, c i^-alpha), c such that they sum to
    `chosen`; most popular first.  Alpha 0 gives chosen / experts for all."""
    popularity = np.arange(1.0, experts + 1.0) ** -alpha
    below = np.cumsum(popularity[::-1])[::-1]  # sum from each expert to the last
    scale = (chosen - np.arange(float(experts))) / below  # of the others, were all before each expert always chosen
    always = int(np.argmax(scale * popularity <= 1.0 + 1e-12))
    probabilities: Array = np.minimum(popularity * scale[always], 1.0)
    probabilities[:always] = 1.0
    return probabilities


def distinct_experts(popularity: Array, tokens: Count) -> Count:
    """Expected distinct experts that `tokens` tokens meet: sum_i 1 - (1 - p_i)^T.  Most where all are alike."""
    counts, where = np.unique(np.asarray(tokens, dtype=np.float64), return_inverse=True)
    missed = 1.0 - popularity
    met = np.array([(1.0 - missed**count).sum() for count in counts])  # one by one: a power's last bit is the array's
    return np.asarray(met[where].reshape(np.shape(tokens)))


def busiest_rank_experts(popularity: Array, ranks: int) -> Array:
    """The experts of the busiest of `ranks` devices.

    Experts are dealt out like cards, the most popular first, as a placement does that knows their order; one that
    knows nothing does worse, one that copies hot experts (EPLB) better.
    """
    return popularity[::ranks]


def busiest_rank_share(alpha: float, experts: int, ranks: int, chosen: float = 1.0) -> float:
    """Share of all routed rows that the busiest of `ranks` devices computes; 1 / ranks where alpha is 0."""
    return float(busiest_rank_experts(selection_probabilities(alpha, experts, chosen), ranks).sum() / chosen)


def expert_skew(alpha: float) -> Pass:
    """Experts are chosen with popularity i^-alpha, so the tokens of a step meet fewer distinct ones.

    Reads of the experts' weights fall to sum_i 1 - (1 - p_i)^T of N; rows, and with them FLOPs, stay tokens x chosen.
    Tokens choose independently; within a token p_i is min(1, c i^-alpha) with sum k: drawing k different ones in turn
    has no closed form.  Shared experts serve all tokens as before.  Expert parallelism finds the popularities in the
    shape and gives the device of the most popular expert the work of its own experts.
    """

    def change(block: Block) -> Block:
        return replace(block, operators=tuple(_skewed(op, block, alpha) for op in block.operators))

    def apply(graph: Graph) -> Graph:
        if not any(_routed(operator) for _, operator in graph):
            raise UserError("--expert-skew: this model has no routed experts")
        return graph.map_blocks(change)

    return apply


def _routed(operator: Operator) -> bool:
    return isinstance(operator.shape, GemmShape) and operator.shape.experts > 1.0


def _skewed(operator: Operator, block: Block, alpha: float) -> Operator:
    shape = operator.shape
    if not isinstance(shape, GemmShape) or not _routed(operator):
        return operator
    tokens = next(op for op in block.operators if op.role is OperatorRole.ROUTER).output_shape[0]
    chosen = float(np.ravel(shape.m / tokens)[0])
    popularity = selection_probabilities(alpha, int(shape.experts), round(chosen))
    active = distinct_experts(popularity, tokens)
    share = active / shape.experts
    reads = tuple(
        Access(a.tensor, a.tensor.elements * share) if a.tensor.role is Role.WEIGHT else a for a in operator.reads
    )
    return replace(operator, reads=reads, shape=replace(shape, active=active, popularity=popularity))


def _make(text: str) -> Change:
    alpha = parse_numbers("--expert-skew", text, (_ALPHA,))["alpha"]
    if alpha == 0.0:
        return lambda system: system
    return add_pass(f"expert_skew(alpha={alpha:g})", lambda _: expert_skew(alpha))


TECHNIQUE = Technique(
    name="expert_skew",
    kind="sparsity",
    summary="Some experts are more popular: a step meets fewer distinct ones, and one rank has more work than others.",
    formula="popularity i^-alpha; distinct experts sum_i 1 - (1 - p_i)^T, p_i = min(1, c i^-alpha), sum_i p_i = k; "
    "alpha 0 is N (1 - (1 - k/N)^T)",
    source="power law of expert loads as NVIDIA aiconfigurator samples them, "
    "https://github.com/ai-dynamo/aiconfigurator; expected distinct draws: sum over experts of Pr(drawn at least once)",
    example="llmviewer analyze mixtral-8x7b --hardware h200 --batch-size 2 --expert-skew alpha=1.0",
    make=_make,
)
