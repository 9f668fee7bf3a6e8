"""Rules by which our number is compared with that of a document, and known differences from LLM-Viewer's counts."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from llmviewer.core.frozen import frozen

#: Relative tolerances: of counts, bits and memory; of speedups and shares that a source gives in round numbers.
EXACT, ROUND = 0.05, 0.25


class Finding(Enum):
    """Verdicts on a claim."""

    HOLDS = "holds"
    EXCEEDED = "exceeded"
    BOUND = "allowed by a bound"
    FAILS = "does not hold"
    OPEN = "cannot be judged"


@frozen
class Rule:
    """How our value is compared with a claim's limits.

    meaning: printed on the page.  finding: of our value, the lowest and the highest limit, which are one number for
    most claims.
    """

    meaning: str
    finding: Callable[[float, float, float], Finding]


def _held(holds: Callable[[float, float, float], bool]) -> Callable[[float, float, float], Finding]:
    return lambda ours, low, high: Finding.HOLDS if holds(ours, low, high) else Finding.FAILS


def _best(ours: float, low: float, high: float) -> Finding:
    if ours > high * (1.0 + EXACT):
        return Finding.EXCEEDED
    return Finding.HOLDS if ours >= low * (1.0 - ROUND) else Finding.FAILS


RULES: dict[str, Rule] = {
    "at least": Rule(meaning="not less than the number", finding=_held(lambda ours, low, high: ours >= low)),
    "at most": Rule(meaning="not more than the number", finding=_held(lambda ours, low, high: ours <= high)),
    "below": Rule(meaning="less than the number", finding=_held(lambda ours, low, high: ours < low)),
    "more than": Rule(
        meaning="by over 5 % more than the number, for a gain that is stated without one; less is within our error",
        finding=_held(lambda ours, low, high: ours > low * (1.0 + EXACT)),
    ),
    "equals": Rule(
        meaning="within 5 % of the number: counts, bits, memory, proportions",
        finding=_held(lambda ours, low, high: abs(ours / low - 1.0) <= EXACT),
    ),
    "about": Rule(
        meaning="within 25 % of the number: what a source gives as about, around, almost or nearly",
        finding=_held(lambda ours, low, high: abs(ours / low - 1.0) <= ROUND),
    ),
    "up to": Rule(
        meaning="from 25 % below the number to 5 % above it; what is higher is *exceeded*, which confirms nothing",
        finding=_best,
    ),
    "between": Rule(
        meaning="in the range, whose ends have 5 % of tolerance",
        finding=_held(lambda ours, low, high: low * (1.0 - EXACT) <= ours <= high * (1.0 + EXACT)),
    ),
    "bounded by": Rule(
        meaning="ours is the most that is possible; not less than the number, it is *allowed by a bound*, no more",
        finding=lambda ours, low, high: Finding.BOUND if ours >= low else Finding.FAILS,
    ),
}


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QUANTIZE = tuple(f"{name}_quantize" for name in ("attn_norm", "mlp_norm", "mlp_act", "sv_matmul", "attention"))


@frozen
class CountDifference:
    """One difference.  operators: those whose numbers differ; empty if it concerns totals only."""

    operators: tuple[str, ...]
    why: str


COUNT_DIFFERENCES: dict[str, CountDifference] = {
    "absent": CountDifference(
        operators=("rope", "embedding", "final_norm"),
        why="LLM-Viewer has no rotary embedding, embedding look-up or final norm; we count their reads and writes.",
    ),
    "mlp_act": CountDifference(
        operators=("mlp_act",),
        why="It sizes the activation between gate, up and down by the hidden size instead of the intermediate size.",
    ),
    "adds": CountDifference(
        operators=("attn_add", "mlp_add"), why="It counts one of the two inputs of a residual sum; we count both."
    ),
    "norms": CountDifference(operators=("attn_norm", "mlp_norm"), why="It does not count the weights of norms."),
    "lm_head": CountDifference(
        operators=("lm_head",),
        why="It counts one operation per multiply-add in lm_head, and one sequence for any batch size.",
    ),
    "head bits": CountDifference(
        operators=("lm_head",),
        why="It quantizes lm_head like the layers; published methods keep it in 16 bit, and so do we.",
    ),
    "scales": CountDifference(
        operators=LINEAR,
        why="Its 4-bit weights have no scales; ours have a 16-bit scale per group of 128 (4.125 bits per weight).",
    ),
    "flash": CountDifference(
        operators=("attention",),
        why=(
            "Its flash attention reads K and V from memory once per block of at most head_dim rows, and writes an "
            "output sized by the sequence length twice, so it moves about as much as the eager kernels. Ours reads "
            "Q, K and V once and writes O once."
        ),
    ),
    "mask": CountDifference(
        operators=("attention",),
        why="It counts the full score matrix in flash attention; a causal kernel computes half of it.",
    ),
    "scores": CountDifference(
        operators=("qk_matmul", "softmax", "sv_matmul"),
        why="At 8 bit it also stores attention scores in 8 bit; we only quantize linear-layer inputs and the cache.",
    ),
    "activations": CountDifference(
        operators=(*QUANTIZE, "rope", "mlp_act", "attn_norm", "mlp_norm", "attn_add", "mlp_add", "embedding"),
        why="At 8 bit it halves every activation; ours stay in 16 bit between linear layers, and quantizing them "
        "adds traffic.",
    ),
    "cache scales": CountDifference(
        operators=("qk_matmul", "sv_matmul", "rope", "v_proj", "k_proj"),
        why="Its quantized cache has no scales; ours has 32 bits of scales per head and token.",
    ),
    "stored": CountDifference(
        operators=(), why="Its weights exclude embedding, lm_head and norms (LLM-Viewer counts only the layers)."
    ),
    "live": CountDifference(
        operators=(),
        why=(
            "Its temporary activations are the outputs of all operators of one layer; ours are the peak of live "
            "tensors, including the logits."
        ),
    ),
    "rate": CountDifference(operators=(), why="It uses 154.84 TFLOP/s for fp16; the data sheet states 154.8."),
}
