"""The heads of DSpark and Domino, which correct the logits of a block token after token."""

from __future__ import annotations

from collections.abc import Callable

from llmviewer.core.ir import Block, Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.models.config import Config
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, add, elementwise
from llmviewer.ops.embedding import embedding
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import Draft, PassShape
from llmviewer.techniques.speculation.module import TABLES, draft_module, embedding_block

SOURCE = "https://github.com/sgl-project/SpecForge, specforge/modeling/draft/dspark.py, domino.py"
#: Elementwise work of a GRU cell per state: two sigmoids, a tanh, and the sums and products between them.
GRU_FLOPS = 10.0


def sequential_head(kind: str, config: Config, target: Model, tokens: float) -> tuple[Draft, ...]:
    """The head of a kind of block drafter, run once per token of a block; none for DFlash.

    config: the section `dflash_config`.
    """
    if kind == "DSpark" and config.count("markov_rank", 0, minimum=0):
        return (_draft(target, "DSpark's Markov head", _markov(config, target), tokens, 1.0),)
    if kind == "Domino":
        plain = float(config.count("pure_draft_prefix_len", 0, minimum=0))
        corrected = max(tokens - plain, 0.0)
        steps = tokens / corrected if corrected else 1.0  # the state also steps over the tokens without a correction
        return (_draft(target, "Domino's head", _gru(config, target), corrected, steps),)
    return ()


def _draft(
    target: Model, name: str, operators: Callable[[Step], tuple[Operator, ...]], passes: float, tokens: float
) -> Draft:
    """The passes of a head; `tokens` of each pass step its state, and one gets logits."""

    def blocks(step: Step) -> tuple[Block, ...]:
        own = Block(name="draft_head", operators=operators(step), scope="model")
        return (embedding_block(target, step), own) if name.startswith("Domino") else (own,)

    module = draft_module(target, name, blocks, SOURCE)
    return Draft(
        name=name, model=module, passes=passes, shape=PassShape(new_tokens=tokens), caches=False, shared=TABLES
    )


def _markov(config: Config, target: Model) -> Callable[[Step], tuple[Operator, ...]]:
    """A bias of logits by the token before, V x r and r x V, and the predicted acceptance, h + r -> 1 with bias."""
    rank, vocabulary, dtype = config.count("markov_rank"), target.head.lm_head.out_features, target.dtype
    table = Tensor(name="markov_w1.weight", elements=vocabulary * (1.0 * rank), dtype=dtype, role=Role.WEIGHT)
    project = Linear(name="markov_w2", in_features=rank, out_features=vocabulary, dtype=dtype)
    inputs = target.hidden + rank * config.flag("confidence_head_with_markov", default=True)
    confidence = Linear(name="confidence", in_features=inputs, out_features=1, dtype=dtype, bias=True)
    has_confidence = config.flag("enable_confidence_head", default=False)

    def operators(step: Step) -> tuple[Operator, ...]:
        rows = step.logits
        row = Tensor(name="markov_w1", elements=rows * (1.0 * rank), dtype=dtype)
        token = embedding("markov_w1", (table,), row, rows)
        bias = project.operator(token.output, rows)
        found = (token, bias, add("markov_add", _logits(target, step), bias.output, rows))
        x = Tensor(name="hidden", elements=rows * (1.0 * inputs), dtype=dtype)
        return (*found, confidence.operator(x, rows)) if has_confidence else found

    return operators


def _gru(config: Config, target: Model) -> Callable[[Step], tuple[Operator, ...]]:
    """A GRU over embeddings of the tokens before, 3 H (h + H), then h + H -> e (SiLU) -> V, added to the logits."""
    state, inner, dtype = config.count("gru_hidden_dim"), config.count("emb_dim"), target.dtype
    read = Linear(name="gru_ih", in_features=target.hidden, out_features=3 * state, dtype=dtype)
    keep = Linear(name="gru_hh", in_features=state, out_features=3 * state, dtype=dtype)
    down = Linear(name="embed_proj_in", in_features=target.hidden + state, out_features=inner, dtype=dtype)
    up = Linear(name="embed_proj_out", in_features=inner, out_features=target.head.lm_head.out_features, dtype=dtype)

    def operators(step: Step) -> tuple[Operator, ...]:
        tokens, rows = step.tokens, step.logits
        x = Tensor(name="embedding", elements=tokens * (1.0 * target.hidden), dtype=dtype)
        before, after = (
            Tensor(name=f"gru_{one}", elements=tokens * (1.0 * state), dtype=dtype) for one in ("h", "cell")
        )
        new, old = read.operator(x, tokens), keep.operator(before, tokens)
        gates = (whole(new.output), whole(old.output), whole(before))
        cell = elementwise("gru_cell", gates, after, tokens, flops=GRU_FLOPS)
        both = Tensor(name="hidden", elements=rows * (1.0 * (target.hidden + state)), dtype=dtype)
        low = down.operator(both, rows)
        act = activate("embed_proj_act", low.output, rows, activation("silu"))
        bias = up.operator(act.output, rows)
        return (new, old, cell, low, act, bias, add("domino_add", _logits(target, step), bias.output, rows))

    return operators


def _logits(target: Model, step: Step) -> Tensor:
    """The logits of the block's pass that a head corrects."""
    return Tensor(name="logits", elements=step.logits * (1.0 * target.head.lm_head.out_features), dtype=target.dtype)
