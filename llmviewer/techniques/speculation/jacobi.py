"""`--speculative jacobi`: a block of tokens is guessed at once and computed again until it does not change."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.serving.generation import Generation, Shape
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative jacobi"
#: Consistency LLMs are trained and measured with blocks of 16.
TOKENS = Parameter(name="tokens", default=16, low=1, high=4096, whole=True)
ITERATIONS = Parameter(name="iterations", low=1, high=4096)


def jacobi_round(tokens: float, iterations: float) -> Generation:
    """A round is one pass over a whole block, `iterations` of which make its tokens right: tokens / iterations each.

    Every pass fixes one token at least, so iterations never exceed tokens; one iteration is non-autoregressive
    decoding, a block of one token is plain.  Every pass computes the whole block: what is right already could stay in
    the cache (Gauss-Seidel order, arXiv 2305.10427), which is left out.
    """
    return Generation(
        shape=Shape(new_tokens=tokens, logit_positions=tokens),
        tokens=tokens / iterations,
        facts={"block_tokens": tokens, "iterations": iterations},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("tokens", "iterations"))
    tokens, iterations = TOKENS.value(given, WHERE), ITERATIONS.value(given, WHERE)
    if iterations > tokens:
        raise UserError(f"{WHERE}: iterations is {iterations:g}; a block of {tokens:g} is right after {tokens:g}")
    generation = jacobi_round(tokens, iterations)
    return change_generation(scheme_name("jacobi", text), lambda _: generation)


TECHNIQUE = Technique(
    name="jacobi",
    kind="speculation",
    summary="A block of tokens is guessed at once, and every pass computes all of it again from the guesses of "
    "the one before, until nothing changes.",
    parameters={
        "iterations": "passes until a block is right; 1 is non-autoregressive decoding",
        "tokens": "tokens of a block; 16 unless said, 1 is plain decoding",
    },
    formula="tokens / iterations tokens of every pass, which computes the whole block; 1 <= iterations <= tokens",
    source="Song et al. arXiv 2002.03629; Santilli et al. arXiv 2305.10427; consistency LLMs arXiv 2403.00835",
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative jacobi,tokens=16,iterations=6",
    make=_make,
)
