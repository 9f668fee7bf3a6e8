"""Methods of --speculative that copy text: ngram, llma, rest, copy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Tensor
from llmviewer.core.workload import Step
from llmviewer.language.grammar import Number
from llmviewer.models.model import Model
from llmviewer.ops.gemm import Linear
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.method import (
    RATES,
    TOKENS,
    Rates,
    Round,
    Rounds,
    drafted,
    speculation,
    tree_verification_pass,
    verification_pass,
)
from llmviewer.techniques.speculation.module import Module, draft_module
from llmviewer.techniques.technique import Whole

MICROSECOND = 1e-6
Lookup = Annotated[float, Number("search time on the host [µs]", 0.0, 1e6)]
MATCH = partial(Number, "share of passes with a match", 0.0, 1.0)
#: Share of passes in which vLLM finds n-grams to draft where text is edited, for which they serve best: 993 of 1,814
#: (https://github.com/vllm-project/vllm/pull/24344).  Elsewhere fewer: 59 of 738 in a story, and 7 to 10 % in chats
#: (pull/24127, issues/19254), while its acceptance rates count drafts alone.
EDITED_MATCH = 0.55


def lookup_round(
    tokens: float, target: Model | None = None, *, rates: Acceptance, match: float, lookup_s: float
) -> Generation:
    """A round: a search on the host, then one pass over the tokens found and the token before them.

    match: share of passes with a match; the others yield one token, so that E = 1 + match (a_1 + a_1 a_2 + ...).  In a
    batch only some sequences match: a pass has 1 + match tokens per sequence on average.  The same mean is used for
    the two kinds of passes of a single sequence.
    """
    shape = verification_pass(tokens)
    accepted = rates.tokens(tokens) - 1.0
    if match != 1.0:
        pairs = match * (tokens + 1.0) * (tokens + 2.0) * 0.5 + (1.0 - match)
        new = 1.0 + match * tokens
        shape = replace(shape, new_tokens=new, logit_positions=new, attended_new_pairs=pairs)
    return Generation(
        shape=shape,
        tokens=1.0 + accepted * match,
        extra_s=lookup_s if tokens else 0.0,
        facts={"drafted_tokens": tokens, "acceptance": str(rates), "match": match},
    )


@speculation(
    "ngram",
    formula="time per token = (verification of 1 + match g tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="https://github.com/apoorvumang/prompt-lookup-decoding; "
    "vLLM https://docs.vllm.ai/en/latest/features/spec_decode/",
    example="llama-2-13b --hardware a100 --speculative ngram,tokens=10,acceptance=ngram-vicuna-13b",
)
def ngram(
    *,
    tokens: Annotated[float | str, TOKENS()] = 10.0,
    acceptance: Annotated[Acceptance, RATES(default="ngram-vicuna-7b")],
    match: Annotated[
        float | None,
        MATCH(unset=f"1 of published lengths, which include passes without; else {EDITED_MATCH}, as in edited text"),
    ] = None,
    lookup_us: Lookup = 0.0,
) -> Rounds:
    """Draft tokens are copied from an earlier occurrence of the last n-gram (prompt lookup); no draft model."""
    if match is None:
        match = 1.0 if acceptance.name else EDITED_MATCH
    return drafted(tokens, partial(lookup_round, rates=acceptance, match=match, lookup_s=lookup_us * MICROSECOND))


@speculation(
    "llma",
    formula="time per token = (verification of 1 + match k tokens + lookup) / E; E = 1 + match (a_1 + a_1 a_2 + ...)",
    source="LLMA arXiv 2304.04487; https://github.com/microsoft/LMOps, llma (20 tokens after a match of 1 by default)",
    example="llama-7b --hardware v100 --speculative llma,tokens=20,acceptance=0.9,match=0.5",
)
def llma(
    *,
    tokens: Annotated[float | str, TOKENS()] = 20.0,
    acceptance: Rates,
    match: Annotated[float, MATCH()] = 1.0,
    lookup_us: Lookup = 0.0,
) -> Rounds:
    """Draft tokens are copied from a reference text, after an n-gram that also occurs in the output; no draft model."""
    return drafted(tokens, partial(lookup_round, rates=acceptance, match=match, lookup_s=lookup_us * MICROSECOND))


#: Depth of the trie in REST's code.
DEPTH = 10.0


@speculation(
    "rest",
    formula="time per token = (verification of nodes + 1 tokens, a node at depth d attends d + 1, + retrieval) / E; "
    "E = 1 + sum over levels of a_1 ... a_i",
    source="REST arXiv 2311.08252; https://github.com/FasterDecoding/REST",
    example="llama-2-7b --hardware a100 --speculative rest,nodes=64",
)
def rest(
    *,
    nodes: Annotated[float, Whole("tokens of the trie", 0, 4096)] = 64.0,
    depth: Annotated[
        float | None, Whole("tokens of its longest phrase", 1, 64, unset=f"{DEPTH:g}, or nodes if fewer")
    ] = None,
    acceptance: Annotated[
        Acceptance, RATES(help="acceptance rate by level, or a published preset", default="rest-vicuna-7b")
    ],
    retrieval_us: Annotated[float, Number("search time on the host [µs]", 0.0, 1e6)] = 1000.0,
    datastore_gb: Annotated[float, Number("size of the datastore in host memory [GB]", 0.0, 1e6)] = 12.0,
) -> Generation:
    """Continuations retrieved from a datastore on the host form a trie that the target verifies with tree attention; no
    draft model.

    A round: retrieval of continuations of the longest matching suffix, then one pass over their trie.  Its shape is not
    published; assumed: `nodes` spread evenly over `depth` levels, as nodes / depth phrases that branch at the root.
    nodes, depth: the paper's code (num_draft).  retrieval_us: the paper states less than a millisecond.  datastore_gb:
    UltraChat's; The Stack has 27 GB, the small ones 0.5 and 0.9 GB.
    """
    if depth is not None and 0.0 < nodes < depth:
        raise UserError(f"{nodes:g} nodes do not reach a depth of {depth:g}")
    if not nodes:
        return AUTOREGRESSIVE
    levels = min(DEPTH if depth is None else depth, nodes)
    return Generation(
        shape=tree_verification_pass(nodes, levels),
        tokens=acceptance.tokens(levels),
        extra_s=retrieval_us * MICROSECOND,
        facts={
            "drafted_tokens": nodes,
            "depth": levels,
            "acceptance": str(acceptance),
            "datastore_bytes_on_host": datastore_gb * 1e9,
        },
    )


COPY_SOURCE = "Copy Is All You Need arXiv 2307.06962; https://github.com/gmftbyGMFTBY/Copyisallyouneed"


def phrase_attention(target: Model, phrases: float) -> Module:
    """The query of the last hidden state, h -> h, and its scores with `phrases` vectors of h elements on the device.

    Phrase vectors are computed beforehand and extend the vocabulary: they are split over devices like an LM head.  Own
    parameters: h h + phrases h.
    """
    width, dtype = target.hidden, target.dtype
    query = Linear(name="phrase_query", in_features=width, out_features=width, dtype=dtype)
    scores = Linear(name="lm_head", in_features=width, out_features=int(phrases), dtype=dtype)

    def blocks(step: Step) -> tuple[Block, ...]:
        x = Tensor(name="hidden", elements=step.logits * (1.0 * width), dtype=dtype)
        projected = query.operator(x, step.logits)
        scored = scores.operator(projected.output, step.logits)
        return (Block(name="phrase_attention", operators=(projected, scored), scope="model"),)

    return draft_module(target, f"attention over {phrases:,.0f} phrases", blocks, COPY_SOURCE)


@speculation(
    "copy",
    formula="a query h -> h and its products with the phrases, phrases x h; the target's pass processes the length "
    "tokens of the choice before; E = length",
    source=COPY_SOURCE + "; survey arXiv 2402.16363, section 4.2.2",
    example="gpt2 --hardware v100 --input-len 512 --speculative copy,length=2,phrases=100000",
)
def copy(
    *,
    length: Annotated[float, Number("mean tokens of a choice", 1.0, 64.0)],
    phrases: Annotated[float, Whole("phrases of the retrieved documents, each a vector on the device", 1, 1e9)],
    search_us: Annotated[float, Number("retrieval of documents on the host [µs]", 0.0, 1e6)] = 0.0,
) -> Round:
    """An attention layer over phrases of retrieved documents selects a phrase to copy, or a token (Copy Is All
    You Need); no verification.

    A round: one pass of the target over the tokens that the round before has copied, and the choice of the next, a
    phrase or a single token of the vocabulary.  Nothing is verified: the choice is the model's own.
    """

    def copying(target: Model) -> Generation:
        module = phrase_attention(target, phrases)
        return Generation(
            shape=PassShape(new_tokens=length, logit_positions=1.0),
            tokens=length,
            drafts=(Draft(name=module.architecture, model=module, caches=False),),
            extra_s=search_us * MICROSECOND,
            facts={"draft": module.architecture, "phrase_tokens": length},
        )

    return copying
