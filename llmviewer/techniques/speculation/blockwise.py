"""`--speculative blockwise`: one wide feed-forward layer predicts a block of tokens that the next pass verifies."""

from __future__ import annotations

from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, add
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, Generation, PassShape
from llmviewer.techniques.speculation.draft_options import ACCEPTANCE_HELP, required_acceptance, scheme_name
from llmviewer.techniques.speculation.module import VOCABULARY, Module, draft_module, feed_forward, hidden_states
from llmviewer.techniques.speculation.verification import round_facts, verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

SOURCE = (
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

    return draft_module(target, f"block of {tokens}", blocks, SOURCE)


WHERE = "--speculative blockwise"
TOKENS = Parameter(name="tokens", default=4, low=2, high=64, whole=True)
INNER = Parameter(name="inner", default=0, low=1, high=1e6, whole=True)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("tokens", "inner", "acceptance"))
    tokens, inner = TOKENS.value(given, WHERE), INNER.value(given, WHERE)
    by_position = required_acceptance(WHERE, given)

    def make(target: Model) -> Generation:
        module = block_heads(target, int(tokens), int(inner) or feed_forward(target).intermediate)
        shape = PassShape(new_tokens=tokens, logit_positions=1.0)
        draft = Draft(name=module.architecture, model=module, shape=shape, caches=False, shared=VOCABULARY)
        return Generation(
            shape=verification_pass(tokens - 1.0),
            tokens=by_position.tokens(tokens - 1.0),
            drafts=(draft,),
            facts=round_facts(module.architecture, tokens - 1.0, by_position),
        )

    return change_generation(scheme_name("blockwise", text), make)


TECHNIQUE = Technique(
    name="blockwise",
    kind="speculation",
    summary="An extra layer predicts the next k tokens at once; the pass that verifies them predicts the next ones.",
    parameters={
        "tokens": "k, including the model's own token (default: 4)",
        "acceptance": ACCEPTANCE_HELP,
        "inner": "width of the layer per token (default: that of the model's MLP)",
    },
    formula="h -> k f (ReLU) -> k h, added to h; one LM head; a pass computes k tokens; "
    "E = 1 + a_1 + a_1 a_2 + ... over k - 1 rates, the mean accepted block size",
    source=SOURCE,
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative blockwise,tokens=4,acceptance=0.6/0.4/0.3",
    make=_make,
)
