"""Methods of --speculative with heads on the target's last hidden state: medusa, blockwise, speculator."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import Annotated

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.language.grammar import Choice, Form
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import Norm, NormKind, activate, activation, add, elementwise, embedding
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation import trees
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks
from llmviewer.techniques.speculation.method import (
    RATES,
    Rates,
    Round,
    read_acceptance,
    read_ranks,
    round_facts,
    speculation,
    tree_verification_pass,
    verification_pass,
)
from llmviewer.techniques.speculation.module import VOCABULARY, Module, draft_module, feed_forward, hidden_states
from llmviewer.techniques.technique import Whole

MEDUSA_SOURCE = "Medusa arXiv 2401.10774; https://github.com/FasterDecoding/Medusa, medusa/model/medusa_model.py"


def medusa_heads(target: Model, heads: int, layers: int = 1) -> Module:
    """`heads` heads of `layers` residual blocks, x + SiLU(W x + b), and a separate LM head each.

    Own parameters: heads (layers (h h + h) + V h).  They run at the positions that need logits.  With tensor
    parallelism the blocks are replicated and the LM heads split by vocabulary, as in vLLM.  The paper's code repeats
    one block if there are several layers; here each layer has its own weights.
    Source: arXiv 2401.10774, section 2.1.1 (one block).
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
            Block(name="medusa_resblock", operators=(product, act, residual), repeats=heads * layers),
            Block(name="medusa_head", operators=(head.operator(x, step.logits),), repeats=heads, scope="model"),
        )

    return draft_module(target, f"Medusa, {heads} heads", blocks, MEDUSA_SOURCE)


#: Nodes per level of the default tree of the paper's code, 63 in total:
#: https://github.com/FasterDecoding/Medusa, medusa/model/medusa_choices.py
LEVELS = (10, 28, 23, 2)
#: Spec-Bench, Vicuna-7B: 2.32 tokens a pass with the tree above.
MEDUSA_DEFAULT = "medusa-vicuna-7b"


@speculation(
    "medusa",
    formula="a head: h -> h (SiLU, residual), h -> V; verification of nodes + 1 tokens, a node at depth d attends "
    "d + 1; E = 1 + sum over levels of a_1 ... a_i; with ranks, the sum over nodes of the products along their paths",
    source=MEDUSA_SOURCE,
    example="llama-2-7b --hardware a100 --speculative medusa,heads=4",
)
def medusa(
    *,
    heads: Annotated[float, Whole("number of heads", 1, 64)] = 4.0,
    nodes: Annotated[float, Whole("draft tokens of the tree; equal to heads for a chain", 1, 4096)] = sum(LEVELS),
    layers: Annotated[float, Whole("residual blocks per head", 0, 16)] = 1.0,
    acceptance: Annotated[
        Acceptance | None, RATES(help="acceptance rate by level, or a published preset", unset=MEDUSA_DEFAULT)
    ] = None,
    ranks: Annotated[
        Ranks | None,
        Form(
            help="alternative: rates at which the first, second ... choice is right; the best tree is built from them",
            parse=read_ranks,
        ),
    ] = None,
) -> Round:
    """Extra heads on the last hidden state draft one position each; a tree of their top choices is verified."""
    if ranks is not None and acceptance is not None:
        raise UserError("give acceptance by level, or ranks to build the best tree from, not both")
    if nodes < heads:
        raise UserError(f"a tree of {heads:g} levels has at least {heads:g} nodes; nodes is {nodes:g}")
    rates: Acceptance | Ranks
    expected: Count
    if ranks is not None:
        rates, tree = ranks, trees.best(int(nodes), ranks, int(heads))
        shape, expected = (
            tree_verification_pass(float(len(tree)), heads, trees.pairs(tree)),
            trees.expected(tree, ranks),
        )
    else:
        rates = acceptance or read_acceptance(MEDUSA_DEFAULT)
        published = (heads, nodes) == (len(LEVELS), sum(LEVELS))
        pairs = 1.0 + sum(count * (depth + 1.0) for depth, count in enumerate(LEVELS, 1)) if published else 0.0
        shape, expected = tree_verification_pass(nodes, heads, pairs), rates.tokens(heads)
    facts = round_facts(f"{heads:g} heads", nodes, rates)

    def round_of(target: Model) -> Generation:
        module = medusa_heads(target, int(heads), int(layers))
        draft = Draft(name=module.architecture, model=module, caches=False)
        return Generation(shape=shape, tokens=expected, drafts=(draft,), facts=facts)

    return round_of


BLOCKWISE_SOURCE = (
    "Stern et al., arXiv 1811.03115; "
    "https://github.com/tensorflow/tensor2tensor, models/research/transformer_parallel.py"
)


def block_heads(target: Model, tokens: int, inner: int) -> Module:
    """A ReLU layer h -> k f -> k h whose k outputs are added to the hidden state; all share the model's LM head.

    tokens: k, including the model's own next token.  inner: f, the width per output.
    Own parameters: k f (h + 1) + k h (k f + 1).  The layer runs over all tokens of a pass, because the last accepted
    one is only known from its first output.  The LM head of outputs 2 ... k runs at the positions that need logits;
    that of the first output is part of the verification pass.
    """
    width, dtype, head = target.hidden, target.dtype, target.head
    up = Linear(name="heads_up_proj", in_features=width, out_features=tokens * inner, dtype=dtype, bias=True)
    down = Linear(
        name="heads_down_proj", in_features=tokens * inner, out_features=tokens * width, dtype=dtype, bias=True
    )

    def blocks(step: Step) -> tuple[Block, ...]:
        hidden = hidden_states(target, step)
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

    return draft_module(target, f"block of {tokens}", blocks, BLOCKWISE_SOURCE)


@speculation(
    "blockwise",
    formula="h -> k f (ReLU) -> k h, added to h; one LM head; a pass computes k tokens; "
    "E = 1 + a_1 + a_1 a_2 + ... over k - 1 rates, the mean accepted block size",
    source=BLOCKWISE_SOURCE,
    example="llama-2-7b --hardware a100 --speculative blockwise,tokens=4,acceptance=0.6/0.4/0.3",
)
def blockwise(
    *,
    tokens: Annotated[float, Whole("k, including the model's own token", 2, 64)] = 4.0,
    acceptance: Rates,
    inner: Annotated[
        float | None, Whole("width of the layer per token", 1, 1e6, unset="that of the model's MLP")
    ] = None,
) -> Round:
    """An extra layer predicts the next k tokens at once; the pass that verifies them predicts the next ones."""

    def round_of(target: Model) -> Generation:
        module = block_heads(target, int(tokens), int(inner or feed_forward(target).intermediate))
        shape = PassShape(new_tokens=tokens, logit_positions=1.0)
        return Generation(
            shape=verification_pass(tokens - 1.0),
            tokens=acceptance.tokens(tokens - 1.0),
            drafts=(Draft(name=module.architecture, model=module, shape=shape, caches=False, shared=VOCABULARY),),
            facts=round_facts(module.architecture, tokens - 1.0, acceptance),
        )

    return round_of


SPECULATOR_SOURCE = (
    "arXiv 2404.19124; https://github.com/foundation-model-stack/fms-extras, fms_extras/models/speculator.py"
)


class Embeddings(Enum):
    """Whether stages have separate embeddings, norms and LM heads, or share one set."""

    OWN = "own"
    SHARED = "shared"


@frozen
class SpeculatorStage:
    """One stage: token embedding, projection of the previous state, normalized weighted sum, GELU, LM head.

    first: its input is the target's hidden state, whose width differs, so its projection is never shared.
    """

    vocabulary: float
    state: float
    inner: float
    dtype: Dtype
    first: bool

    def operators(self, step: Step) -> tuple[Operator, ...]:
        """Operators of the stage at the positions that need logits; the state is the output of the last but one."""
        rows = step.logits
        elements = rows * (1.0 * self.inner)
        before = Tensor(name="hidden", elements=rows * (1.0 * self.state), dtype=self.dtype)
        table = Tensor(
            name="embedding.weight", elements=self.vocabulary * self.inner, dtype=self.dtype, role=Role.WEIGHT
        )
        token = embedding("embedding", (table,), Tensor(name="embedding", elements=elements, dtype=self.dtype), rows)
        name = "state_proj_first" if self.first else "state_proj"
        project = Linear(name=name, in_features=self.state, out_features=self.inner, dtype=self.dtype)
        state = project.operator(before, rows)
        sums = Tensor(name="state_sum", elements=elements, dtype=self.dtype)
        both = elementwise("state_sum", (whole(state.output), whole(token.output)), sums, rows, flops=2.0)
        norm = Norm(
            name="state_norm", kind=NormKind.LAYER, width=self.inner, parameters=2.0 * self.inner, dtype=self.dtype
        )
        normed = norm.operator(sums, rows)
        act = activate("state_act", normed.output, rows, activation("gelu"))
        head = Linear(name="lm_head", in_features=self.inner, out_features=self.vocabulary, dtype=self.dtype)
        return (token, state, both, normed, act, head.operator(act.output, rows))


def speculator_stages(target: Model, heads: int, inner: int, embeddings: Embeddings = Embeddings.OWN) -> Module:
    """`heads` stages of width `inner`, all run in one pass of the module.

    Own parameters: heads (2 V inner + 2 inner) + h inner + (heads - 1) inner^2; if stages share embedding, norm and
    head, and all but the first the projection: 2 V inner + 2 inner + h inner + inner^2.
    With tensor parallelism embeddings and heads are split by vocabulary and projections replicated, as in vLLM.
    Not modelled: scaling of the target's state (`scale_input`), which has no weights.
    """
    vocabulary, own = target.head.lm_head.out_features, embeddings is Embeddings.OWN
    widths = [target.hidden] + [inner] * heads
    stages = [
        SpeculatorStage(vocabulary=vocabulary, state=state, inner=width, dtype=target.dtype, first=at == 0)
        for at, (state, width) in enumerate(pairwise(widths))
    ]

    def blocks(step: Step) -> tuple[Block, ...]:
        # blocks of one scope share weights of the same name
        return tuple(
            Block(name=f"stage_{at}", operators=stage.operators(step), scope=f"stage_{at}" if own else "model")
            for at, stage in enumerate(stages, 1)
        )

    return draft_module(target, f"speculator, {heads} heads of {inner}", blocks, SPECULATOR_SOURCE)


@speculation(
    "speculator",
    formula="a stage: embedding V x d, h or d -> d, norm, GELU, d -> V; verification of candidates x heads + 1 tokens; "
    "E = 1 + a_1 + a_1 a_2 + ...",
    source=SPECULATOR_SOURCE + "; https://pytorch.org/blog/hitchhikers-guide-speculative-decoding/",
    example="llama-2-13b --hardware a100 --speculative speculator,heads=3,acceptance=0.7/0.6/0.5",
)
def speculator(
    *,
    heads: Annotated[float, Whole("number of stages: 3 to 4 for language, 6 to 8 for code", 1, 16)] = 3.0,
    acceptance: Rates,
    inner: Annotated[float, Whole("width of a stage", 1, 1e6)] = 4096.0,
    embeddings: Annotated[
        Embeddings, Choice("own: separate embeddings, norms and heads per stage; shared: one set", Embeddings)
    ] = Embeddings.OWN,
    candidates: Annotated[float, Whole("chains verified in one pass; acceptance is that of the best", 1, 64)] = 1.0,
) -> Round:
    """One MLP stage per draft token, each on the state and token of the stage before (IBM's multi-stage speculator).

    inner: width of the published heads for Llama-2-13b: https://huggingface.co/ibm-fms/llama-13b-accelerator.
    """

    def round_of(target: Model) -> Generation:
        module = speculator_stages(target, int(heads), int(inner), embeddings)
        return Generation(
            shape=tree_verification_pass(candidates * heads, heads),
            tokens=acceptance.tokens(heads),
            drafts=(Draft(name=module.architecture, model=module, caches=False),),
            facts=round_facts(module.architecture, candidates * heads, acceptance),
        )

    return round_of
