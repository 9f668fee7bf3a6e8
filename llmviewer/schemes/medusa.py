"""`--speculative medusa`: heads on the last hidden state, each of which drafts one token further ahead."""

from __future__ import annotations

from llmviewer.ir import Block, Tensor
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, add
from llmviewer.ops.gemm import Linear
from llmviewer.schemes.module import Module, beside
from llmviewer.workload import Step

SOURCE = "Medusa arXiv 2401.10774; https://github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py"


def medusa_heads(target: Model, heads: int, layers: int = 1) -> Module:
    """`heads` heads of `layers` residual blocks, x + SiLU(W x + b), and a vocabulary matrix of their own.

    Own parameters: heads (layers (h h + h) + V h).  They run on the positions that ask for logits.  Devices that share
    the model run the blocks whole and share the vocabulary, as vLLM does.  The paper's own code repeats one block where
    it has several layers; here each has its weights.  Source: arXiv 2401.10774, section 2.1.1 (one block).
    """
    width, dtype = target.hidden, target.dtype
    block = Linear(name="resblock_proj", in_features=width, out_features=width, dtype=dtype, bias=True)
    head = Linear(name="lm_head", in_features=width, out_features=target.head.lm_head.out_features, dtype=dtype)

    def blocks(step: Step) -> tuple[Block, ...]:
        x = Tensor(name="hidden", elements=step.logits * (1.0 * width), dtype=dtype)
        product = block.operator(x, step.logits)
        act = activate("resblock_act", product.output, step.logits, activation("silu"))
        residual = add("resblock_add", x, act.output, step.logits)
        return (
            Block(name="medusa_resblock", operators=(product, act, residual), times=heads * layers),
            Block(name="medusa_head", operators=(head.operator(x, step.logits),), times=heads, scope="model"),
        )

    return beside(target, f"Medusa, {heads} heads", blocks, SOURCE)
