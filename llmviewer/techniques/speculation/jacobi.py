"""`--speculative jacobi`: a block of tokens is guessed at once and recomputed until it no longer changes."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.serving.generation import Generation, PassShape
from llmviewer.techniques.speculation.draft_options import scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative jacobi"
#: Block size with which consistency LLMs are trained and measured.
TOKENS = Parameter(name="tokens", default=16, low=1, high=4096, whole=True)
ITERATIONS = Parameter(name="iterations", low=1, high=4096)


def jacobi_round(tokens: float, iterations: float) -> Generation:
    """A round: one pass over a whole block.  A block converges after `iterations` passes: tokens / iterations each.

    Every pass fixes at least one token, so iterations <= tokens; one iteration is non-autoregressive decoding, a block
    of one token is plain decoding.  Every pass computes the whole block; not modelled: keeping converged tokens in the
    cache (Gauss-Seidel order, arXiv 2305.10427).
    """
    return Generation(
        shape=PassShape(new_tokens=tokens, logit_positions=tokens),
        tokens=tokens / iterations,
        facts={"block_tokens": tokens, "iterations": iterations},
    )


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("tokens", "iterations"))
    tokens, iterations = TOKENS.value(given, WHERE), ITERATIONS.value(given, WHERE)
    if iterations > tokens:
        raise UserError(
            f"{WHERE}: iterations is {iterations:g}; a block of {tokens:g} tokens converges after at most {tokens:g}"
        )
    generation = jacobi_round(tokens, iterations)
    return change_generation(scheme_name("jacobi", text), lambda _: generation)


TECHNIQUE = Technique(
    name="jacobi",
    kind="speculation",
    summary="A block of tokens is guessed at once, and each pass recomputes all of it from the previous guesses until "
    "nothing changes; no draft model.",
    parameters={
        "iterations": "passes until a block converges; 1 is non-autoregressive decoding",
        "tokens": "tokens of a block (default: 16); 1 is plain decoding",
    },
    formula="tokens / iterations tokens per pass; every pass computes the whole block; 1 <= iterations <= tokens",
    source="Song et al. arXiv 2002.03629; Santilli et al. arXiv 2305.10427; consistency LLMs arXiv 2403.00835",
    example="llmviewer analyze llama-2-7b --hardware a100 --speculative jacobi,tokens=16,iterations=6",
    make=_make,
)
