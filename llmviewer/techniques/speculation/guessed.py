"""Methods of --speculative that guess several tokens at once, without a draft model: lookahead to diffusion."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.language.grammar import Choice, Number
from llmviewer.models.model import Model
from llmviewer.serving.generation import Cached, Denoising, Draft, Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.method import (
    RATES,
    Rates,
    Round,
    Rounds,
    Tokens,
    drafted,
    round_facts,
    speculation,
    verification_pass,
)
from llmviewer.techniques.technique import Whole


def expected_from_guesses(rates: Acceptance, ngram: float, guesses: float) -> Count:
    """Expected tokens of a pass that verifies `guesses` independent n-grams with the same acceptance rates.

    E = 1 + sum over i = 1..N-1 of 1 - (1 - a_1 ... a_i)^G, which is N - sum of (1 - a^i)^G for a constant rate
    (arXiv 2402.02057, section 4, with G speculations of N - 1 tokens).
    """
    expected = all_accepted = 1.0
    for position in range(1, int(ngram)):
        all_accepted *= rates.at(position)
        expected += 1.0 - (1.0 - all_accepted) ** guesses
    return expected


def lookahead_pass(window: float, ngram: float, guesses: float) -> PassShape:
    """The pass over (W + G)(N - 1) tokens, all with logits, as in the published code.

    The lookahead branch has N - 1 rows of W tokens, the first of which starts with the last accepted token; the
    verification branch has G guesses of N - 1 tokens.  The token at position j of row r (both from 1) attends the first
    row up to j and its own column down to r, j + r - 1 tokens; the k-th token of a guess attends the last accepted
    token and its own guess, k + 1.  Pairs: (N-1) W(W+1)/2 + W (N-1)(N-2)/2 + G ((N-1) N/2 + N-1).
    W = 1, N = 2, G = 0 is plain decoding.  Not modelled: the first N passes, which fill the window.
    Source: arXiv 2402.02057, section 3; https://github.com/hao-ai-lab/LookaheadDecoding, lade/models/llama.py.
    """
    rows = ngram - 1.0
    new_tokens = (window + guesses) * rows
    branch = rows * window * (window + 1.0) * 0.5 + window * rows * (rows - 1.0) * 0.5
    verification = guesses * (rows * ngram * 0.5 + rows)
    return PassShape(new_tokens=new_tokens, logit_positions=new_tokens, attended_new_pairs=branch + verification)


@speculation(
    "lookahead",
    formula="a pass computes (W + G)(N - 1) tokens, including the last accepted one; pairs among them "
    "(N-1) W(W+1)/2 + W (N-1)(N-2)/2 + G ((N-1) N/2 + N-1); E = N - sum over i = 1..N-1 of (1 - a^i)^G",
    source="Lookahead decoding arXiv 2402.02057; https://github.com/hao-ai-lab/LookaheadDecoding",
    example="llama-2-7b --hardware a100 --speculative lookahead,window=7,acceptance=lookahead-vicuna-7b",
)
def lookahead(
    *,
    window: Annotated[float, Whole("lookahead positions that are guessed", 1, 1024)] = 15.0,
    ngram: Annotated[float, Whole("tokens of an n-gram", 2, 64)] = 5.0,
    guesses: Annotated[float | None, Whole("n-grams verified per pass", 0, 1024, unset="window")] = None,
    acceptance: Annotated[
        Acceptance | None,
        RATES(
            help="acceptance rate of the tokens of one guess, or a published preset (lookahead-vicuna-7b: measured "
            "with window 7)"
        ),
    ] = None,
    compression: Annotated[float | None, Number("alternative to acceptance: tokens per pass", 1.0, 64.0)] = None,
) -> Generation:
    """Each pass guesses n-grams by Jacobi iteration in a lookahead window and verifies matching n-grams from earlier
    passes; no draft model.

    window: the paper's for 7B on an A100 (10 for 13B, 7 for 34B), with as many guesses.
    """
    guesses = window if guesses is None else guesses
    if acceptance is not None and compression is None:
        rates = acceptance
        tokens = rates.tokens(ngram - 1.0) if rates.name else expected_from_guesses(rates, ngram, guesses)
    elif compression is not None and acceptance is None:
        tokens = compression
        if compression > ngram:
            raise UserError(f"compression is {tokens:g}; {ngram:g}-grams yield at most {ngram:g} tokens per pass")
    else:
        raise UserError("give acceptance (a published preset, or rates of one guess) or compression (tokens per pass)")
    return Generation(
        shape=lookahead_pass(window, ngram, guesses),
        tokens=tokens,
        facts={"window": window, "ngram": ngram, "guesses": guesses},
    )


@speculation(
    "jacobi",
    formula="tokens / iterations tokens per pass; every pass computes the whole block; 1 <= iterations <= tokens",
    source="Song et al. arXiv 2002.03629; Santilli et al. arXiv 2305.10427; consistency LLMs arXiv 2403.00835",
    example="llama-2-7b --hardware a100 --speculative jacobi,tokens=16,iterations=6",
)
def jacobi(
    *,
    iterations: Annotated[float, Number("passes until a block converges; 1 is non-autoregressive decoding", 1, 4096)],
    tokens: Annotated[float, Whole("tokens of a block; 1 is plain decoding", 1, 4096)] = 16.0,
) -> Generation:
    """A block of tokens is guessed at once, and each pass recomputes all of it until nothing changes; no draft model.

    Every pass fixes at least one token, so iterations <= tokens.  Not modelled: keeping converged tokens in the cache
    (Gauss-Seidel order, arXiv 2305.10427).  tokens: consistency LLMs are trained and measured with 16.
    """
    if iterations > tokens:
        raise UserError(
            f"iterations is {iterations:g}; a block of {tokens:g} tokens converges after at most {tokens:g}"
        )
    return Generation(
        shape=PassShape(new_tokens=tokens, logit_positions=tokens),
        tokens=tokens / iterations,
        facts={"block_tokens": tokens, "iterations": iterations},
    )


@speculation(
    "pass",
    formula="two passes of tokens + 1 tokens each for E = 2 + a_1 + a_1 a_2 + ... tokens; extra memory: KV cache of "
    "the draft tokens only",
    source="PaSS arXiv 2311.13581",
    example="llama-7b --hardware a100 --speculative pass,tokens=4,acceptance=0.5",
)
def look_ahead_tokens(*, tokens: Tokens, acceptance: Rates) -> Rounds:
    """Parallel speculative sampling (PaSS): the target drafts for itself, in one pass with look-ahead tokens after the
    last token.

    The first of two passes generates one token as in plain decoding and drafts the others; the second accepts
    a_1 + a_1 a_2 + ... of them and adds a bonus token: E = 2 + a_1 + a_1 a_2 + ...  Without any acceptance that is one
    token per pass, as in plain decoding.  Not modelled: the look-ahead embeddings, h parameters each.
    Source: PaSS, arXiv 2311.13581, algorithm 1.
    """

    def round_of(drafts: float, target: Model) -> Generation:
        shape = verification_pass(drafts)
        name = f"{target.name}, looking ahead"
        draft = Draft(name=name, model=target, shape=shape, caches=False, shared=None, same_weights=True)
        return Generation(
            shape=PassShape(new_tokens=shape.new_tokens, logit_positions=shape.logit_positions, ahead=1.0),
            tokens=1.0 + acceptance.tokens(drafts),
            drafts=(draft,),
            facts=round_facts(draft.name, drafts, acceptance),
        )

    return drafted(tokens, round_of)


ALONE = "tokens that see each other cannot be divided into branches, chunks or instances"


def denoised(denoising: Denoising, facts: dict[str, float | str]) -> Round:
    """The rounds of denoised blocks; raises UserError for a target that cannot have them."""

    def round_of(target: Model) -> Generation:
        if target.encoder is not None and denoising.whole:
            raise UserError(
                f"--speculative diffusion: the input of {target.name} is encoded once and not computed again; use "
                "cache=blocks, or --speculative nat"
            )
        if any(op.kind in (Kind.RECURRENCE, Kind.CONV) for _, op in target.graph(decode(1.0, 1.0))):
            raise UserError(
                f"--speculative: recurrent layers of {target.name} see earlier tokens only; use a model of attention"
            )
        return Generation(denoising=denoising, facts=facts)

    return round_of


@speculation(
    "diffusion",
    alone=ALONE,
    formula="n / per_pass passes; each over S + n tokens (none), block and later ones (prefix), or block (dual, "
    "blocks); with prefix and dual the first of a block is over S + n, with blocks one more pass stores a finished "
    "block; T tokens that see each other and c cached ones attend T (T + c) pairs; TTFT is the first pass, or with "
    "blocks the prompt's prefill",
    source="LLaDA arXiv 2502.09992, Dream arXiv 2508.15487; caches: Fast-dLLM arXiv 2505.22618, "
    "https://github.com/NVlabs/Fast-dLLM; blocks: Block Diffusion arXiv 2503.09573",
    example="llada-8b --hardware h100 --input-len 128 --output-len 256 "
    "--speculative diffusion,block=32,per_pass=4,cache=dual",
)
def diffusion(
    *,
    block: Annotated[float, Whole("tokens of a block", 1, 2.0**20)] = 32.0,
    steps: Annotated[
        float | None, Number("passes per block, a mean", 1, 2.0**20, unset="block, one token per pass")
    ] = None,
    per_pass: Annotated[
        float | None, Number("alternative to steps: tokens decided per pass, a mean", 1, 2.0**20)
    ] = None,
    cache: Annotated[
        Cached,
        Choice(
            "none: every pass computes prompt and answer; prefix: keys and values of prompt and earlier blocks are "
            "kept within a block, dual: of later blocks too; blocks: kept for good, by models whose blocks see only "
            "earlier ones",
            Cached,
        ),
    ] = Cached.NONE,
) -> Round:
    """A diffusion language model decides the masked tokens of a block in a few passes, in which all see each other.

    block: block_length of the published evaluation, https://github.com/ML-GSAI/LLaDA.
    """
    if steps is not None and per_pass is not None:
        raise UserError("give steps=8 of each block, or per_pass=4 tokens, not both")
    passes = steps or (block / per_pass if per_pass else block)
    if not 1.0 <= passes <= block:
        raise UserError(f"{passes:g} steps; a block of {block:g} tokens takes 1 to {block:g}")
    return denoised(
        Denoising(block=block, steps=passes, cached=cache),
        {"block_tokens": block, "steps": passes, "cache": cache.value},
    )


@speculation(
    "nat",
    alone=ALONE,
    formula="iterations passes over n tokens that see each other and the input: n (n + S) pairs; the input is read "
    "once, with one token of the decoder, which stands for the prediction of the length",
    source="NAT arXiv 1711.02281, Mask-Predict arXiv 1904.09324, SUNDAE arXiv 2112.06749; survey arXiv 2402.16363, "
    "section 4.2.2",
    example="t5-v1.1-base --hardware v100 --input-len 32 --output-len 32 --speculative nat,iterations=4",
)
def non_autoregressive(
    iterations: Annotated[
        float, Number("passes over the whole answer, a mean: 1 for NAT, 4 to 10 for Mask-Predict", 1, 4096)
    ] = 1.0,
) -> Round:
    """A non-autoregressive decoder predicts all tokens of the answer in one pass, and refines them in further
    ones (NAT, Mask-Predict, SUNDAE).
    """
    whole = Denoising(block=np.inf, steps=iterations, cached=Cached.BLOCKS)
    return denoised(whole, {"iterations": iterations})
