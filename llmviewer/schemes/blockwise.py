"""`--speculative blockwise`: one wide feed-forward layer predicts a block of tokens, verified by the next pass."""

from __future__ import annotations

from llmviewer.ir import Block, Tensor
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, add
from llmviewer.ops.gemm import Linear
from llmviewer.schemes.module import Module, beside, states
from llmviewer.workload import Step

SOURCE = (
    "Stern et al., arXiv 1811.03115; "
    "https://github.com/tensorflow/tensor2tensor, models/research/transformer_parallel.py"
)


def block_heads(target: Model, tokens: int, inner: int) -> Module:
    """A layer h -> k f -> k h with ReLU whose k outputs are added to the state; one vocabulary for all, the model's.

    tokens: k, the first of them the model's own next one.  inner: f, the width per output.
    Own parameters: k f (h + 1) + k h (k f + 1).  The layer runs over all tokens of a pass, since which of them is the
    last accepted one is known from its first output; the vocabulary of outputs 2 ... k at the positions that ask for
    logits (that of the first output is the model's own head, in the pass that verifies).
    """
    width, dtype, head = target.hidden, target.dtype, target.head
    up = Linear(name="heads_up_proj", in_features=width, out_features=tokens * inner, dtype=dtype, bias=True)
    down = Linear(
        name="heads_down_proj", in_features=tokens * inner, out_features=tokens * width, dtype=dtype, bias=True
    )

    def blocks(step: Step) -> tuple[Block, ...]:
        hidden = states(target, step)
        wide = up.operator(hidden, step.tokens)
        act = activate("heads_act", wide.output, step.tokens, activation("relu"))
        outputs = down.operator(act.output, step.tokens)
        residual = add("heads_add", outputs.output, hidden, step.tokens)
        rows = step.logits * (tokens - 1.0)
        x = Tensor(name="hidden", elements=rows * (1.0 * width), dtype=dtype)
        return (
            Block(name="block_heads", operators=(wide, act, outputs, residual)),
            Block(name="head", operators=(head.logits(x, rows),), scope="model"),
        )

    return beside(target, f"block of {tokens}", blocks, SOURCE)
