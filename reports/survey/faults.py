"""Where LLM-Viewer counts otherwise: which operators it concerns, and why, in one place."""

from __future__ import annotations

from dataclasses import dataclass

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QUANTIZE = tuple(f"{name}_quantize" for name in ("attn_norm", "mlp_norm", "mlp_act", "sv_matmul", "attention"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDifference:
    """operators: those whose numbers differ by it; none where it is a matter of the whole."""

    operators: tuple[str, ...]
    why: str


COUNT_DIFFERENCES: dict[str, CountDifference] = {
    "absent": CountDifference(
        operators=("rope", "embedding", "final_norm"),
        why="It has no rotary embedding, no embedding look-up and no final norm; we count what they read and write.",
    ),
    "mlp_act": CountDifference(
        operators=("mlp_act",),
        why="It sizes the activation between gate, up and down by the hidden size; it works on intermediate elements.",
    ),
    "adds": CountDifference(
        operators=("attn_add", "mlp_add"), why="It lets a residual sum read one of its two inputs; we count both."
    ),
    "norms": CountDifference(operators=("attn_norm", "mlp_norm"), why="It never reads the weights of norms."),
    "lm_head": CountDifference(
        operators=("lm_head",),
        why="It counts one operation per multiply-add in lm_head, and one sequence whatever the batch.",
    ),
    "head bits": CountDifference(
        operators=("lm_head",),
        why="It quantizes lm_head with the layers; published methods leave it in 16 bit, and so do we.",
    ),
    "scales": CountDifference(
        operators=LINEAR,
        why="Its 4-bit weights carry no scales; ours store one of 16 bit for every group of 128 (4.125 bits).",
    ),
    "flash": CountDifference(
        operators=("attention",),
        why=(
            "Its flash attention reads K and V from memory once for every block of rows, with blocks of at most "
            "head_dim rows, and writes an output sized by the sequence length, twice: it moves about as much as the "
            "eager kernels. Ours reads Q, K and V once and writes O once."
        ),
    ),
    "mask": CountDifference(
        operators=("attention",),
        why="It counts the whole square of scores under flash attention; a causal kernel computes half of it.",
    ),
    "scores": CountDifference(
        operators=("qk_matmul", "softmax", "sv_matmul"),
        why="At 8 bit it stores attention scores in 8 bit too; we quantize inputs of linear layers and the cache only.",
    ),
    "activations": CountDifference(
        operators=(*QUANTIZE, "rope", "mlp_act", "attn_norm", "mlp_norm", "attn_add", "mlp_add", "embedding"),
        why="At 8 bit it halves every activation; ours stay in 16 bit between layers, and making 8 bit of "
        "them moves bytes.",
    ),
    "cache scales": CountDifference(
        operators=("qk_matmul", "sv_matmul", "rope", "v_proj", "k_proj"),
        why="Its quantized cache has no scales; ours keeps 32 bit for every head and token.",
    ),
    "stored": CountDifference(
        operators=(), why="Its weights lack embedding, lm_head and norms (LLM-Viewer counts the layers alone)."
    ),
    "live": CountDifference(
        operators=(),
        why=(
            "Its temporary activations are the outputs of all operators of one layer together; ours are those alive at "
            "the same time, with the logits."
        ),
    ),
    "rate": CountDifference(operators=(), why="It takes 154.84 TFLOP/s for fp16; the data sheet prints 154.8."),
}
