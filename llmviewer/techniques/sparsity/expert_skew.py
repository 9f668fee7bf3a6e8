"""`--expert-skew`: routers that select some experts more often than others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Annotated

import numpy as np

from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import OperatorRole
from llmviewer.language.grammar import Number
from llmviewer.ops.gemm import GemmShape, has_routed_experts
from llmviewer.techniques.technique import Change, add_pass, technique, unchanged

#: Share of its experts that a draft token of a served request has in common with the one before it: 0.38 by Cohere (128
#: experts, 8 chosen), where four tokens need 2.5 times the experts of one
#: (https://cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding); 0.46 and 2.37 of
#: Qwen3-30B-A3B (https://github.com/Li-changwu/MoE-SD, results/routing_overlap_analysis.json).
SERVED_REPEAT = 0.38
#: Passes of a request, beside those of a sweep.
FEW = 16


def selection_probabilities(alpha: float, experts: int, chosen: float) -> Array:
    """Probability that each expert is among the `chosen` experts of a token, in order of popularity.

    It is min(1, c i^-alpha) with c such that the sum is `chosen`; alpha 0 gives chosen / experts for all.
    """
    popularity = np.arange(1.0, experts + 1.0) ** -alpha
    below = np.cumsum(popularity[::-1])[::-1]  # sum from each expert to the last
    scale = (chosen - np.arange(float(experts))) / below  # scale c if all experts before each one had probability 1
    always = int(np.argmax(scale * popularity <= 1.0 + 1e-12))
    probabilities: Array = np.minimum(popularity * scale[always], 1.0)
    probabilities[:always] = 1.0
    return probabilities


def distinct_experts(popularity: Array, tokens: Count) -> Count:
    """Expected distinct experts of `tokens` tokens: sum_i 1 - (1 - p_i)^T; the maximum is at uniform popularity."""
    # expert by expert: a power has the same bits for one count as for many, and can be recorded
    return total(1.0 - np.power(missed, tokens) for missed in (1.0 - popularity).tolist())


@cache
def run_exponent(alpha: float, repeat: float, experts: int, chosen: float) -> float:
    """Exponent e by which a run of n related tokens uses as many experts as n^e unrelated ones, from 0 to 1.

    It is the one with which two neighbours have the share `repeat` of their experts in common: 2^e unrelated tokens use
    (2 - repeat) `chosen`.  1 if popularity alone gives at least that share.  Overlap hardly falls with distance, unlike
    that of a Markov chain: with the share of two measured tokens, four use 2.56 times the experts of one (Cohere: 2.5),
    2.33 (Qwen3-30B-A3B: 2.37).
    """
    popularity = selection_probabilities(alpha, experts, chosen)
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        fewer = float(distinct_experts(popularity, 2.0**middle)) < (2.0 - repeat) * chosen
        low, high = (middle, high) if fewer else (low, middle)
    return high


def busiest_rank_experts(popularity: Array, ranks: int) -> Array:
    """Popularity of the experts on the busiest of `ranks` devices.

    Experts are assigned round-robin in order of popularity.  A placement that ignores popularity is less balanced, one
    that replicates hot experts (EPLB) is more balanced.
    """
    return popularity[::ranks]


def busiest_rank_share(alpha: float, experts: int, ranks: int, chosen: float = 1.0) -> float:
    """Share of all routed rows that the busiest of `ranks` devices computes; 1 / ranks if alpha is 0."""
    return float(busiest_rank_experts(selection_probabilities(alpha, experts, chosen), ranks).sum() / chosen)


def expert_skew(alpha: float, repeat: float = 0.0) -> Pass:
    """Select experts with popularity i^-alpha, so that the tokens of a step use fewer distinct experts.

    Reads of expert weights fall to sum_i 1 - (1 - p_i)^T of N; rows, and therefore FLOPs, stay tokens x chosen.
    Tokens select independently; for one token p_i is min(1, c i^-alpha) with sum k, because drawing k different experts
    in turn has no closed form.  repeat: share of its experts that a draft token has in common with the one before it,
    so that drafts of a sequence use fewer (`run_exponent`).  Shared experts are unchanged.  Expert parallelism reads
    the popularities from the shape and gives the busiest device the work of its own experts.
    """

    def change(block: Block) -> Block:
        known: dict[object, tuple[Count | None, Count]] = {}
        return replace(block, operators=tuple(_skewed(op, block, alpha, repeat, known) for op in block.operators))

    def apply(graph: Graph) -> Graph:
        if not has_routed_experts(graph):
            raise UserError("--expert-skew: this model has no routed experts")
        return graph.map_blocks(change)

    return apply


def _skewed(
    operator: Operator, block: Block, alpha: float, repeat: float, known: dict[object, tuple[Count | None, Count]]
) -> Operator:
    """The operator with the experts that its tokens use.  known: tokens and experts of the block's other products."""
    shape = operator.shape
    if not isinstance(shape, GemmShape) or shape.experts <= 1.0:
        return operator
    tokens = next(op for op in block.operators if op.role is OperatorRole.ROUTER).output_shape[0]
    chosen = round(float(np.ravel(shape.m / tokens)[0]))
    popularity = selection_probabilities(alpha, int(shape.experts), chosen)
    key = (shape.experts, chosen, tuple((id(runs), id(length)) for runs, length in shape.runs))
    if key not in known:
        unrelated = None
        if repeat and shape.runs:
            exponent = run_exponent(alpha, repeat, int(shape.experts), chosen)
            unrelated = total(runs * np.power(length, exponent) for runs, length in shape.runs)
        asked = tokens if unrelated is None else unrelated
        known[key] = unrelated, _used(alpha, int(shape.experts), chosen, asked)
    unrelated, active = known[key]
    share = active / shape.experts
    reads = tuple(
        Access(a.tensor, a.tensor.elements * share) if a.tensor.role is Role.WEIGHT else a for a in operator.reads
    )
    skewed = replace(shape, active=active, popularity=popularity, unrelated=unrelated)
    return operator.having(reads=reads, shape=skewed)


def _used(alpha: float, experts: int, chosen: float, tokens: Count) -> Count:
    """`distinct_experts`, worked out once for the few numbers of a request; recorded arrays and sweeps each time."""
    if type(tokens) is not np.ndarray or tokens.size > FEW:
        return distinct_experts(selection_probabilities(alpha, experts, chosen), tokens)
    return _used_by_few(alpha, experts, chosen, tokens.shape, tokens.tobytes())


@lru_cache(maxsize=1024)
def _used_by_few(alpha: float, experts: int, chosen: float, shape: tuple[int, ...], tokens: bytes) -> Count:
    popularity = selection_probabilities(alpha, experts, chosen)
    return distinct_experts(popularity, np.frombuffer(tokens).reshape(shape))


@technique(
    "expert_skew",
    kind="sparsity",
    formula="popularity i^-alpha; distinct experts sum_i 1 - (1 - p_i)^T, p_i = min(1, c i^-alpha), sum_i p_i = k; "
    "alpha 0 is N (1 - (1 - k/N)^T); n draft tokens of a sequence count as n^e, e such that two share `repeat`",
    source="power law of expert loads as NVIDIA aiconfigurator samples them, "
    "https://github.com/ai-dynamo/aiconfigurator; expected distinct draws: sum over experts of Pr(drawn at least once)",
    example="mixtral-8x7b --hardware h200 --batch-size 2 --expert-skew alpha=1.0",
)
def expert_skew_option(
    alpha: Annotated[float, Number("exponent of popularity i^-alpha; 0: uniform", 0.0, 10.0)] = 0.0,
    *,
    repeat: Annotated[
        float,
        Number(
            "share of its experts that a draft token has in common with the one before it. Measured: 0.30 Mixtral 8x7B "
            "(0.25 by chance; arXiv 2401.04088, table 5), 0.38 Cohere, 0.46 Qwen3-30B-A3B",
            0.0,
            1.0,
            unset="what popularity alone gives",
        ),
    ] = 0.0,
) -> Change:
    """Selects some experts more often: a step uses fewer distinct experts, and one device has more work."""
    if alpha == 0.0 and repeat == 0.0:
        return unchanged
    shown = f"alpha={alpha:g}" + f", repeat={repeat:g}" * (repeat > 0.0)
    return add_pass(f"expert_skew({shown})", lambda _: expert_skew(alpha, repeat))
