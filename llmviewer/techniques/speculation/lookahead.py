"""`--speculative lookahead`: the model guesses its own n-grams in a window ahead and verifies those that fit."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.serving.generation import Generation, Shape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import required_acceptance, scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative lookahead"
#: The paper's choice for 7B on an A100; 10 for 13B, 7 for 34B, as many guesses as window.
WINDOW = Parameter(name="window", default=15, low=1, high=1024, whole=True)
NGRAM = Parameter(name="ngram", default=5, low=2, high=64, whole=True)
GUESSES = Parameter(name="guesses", low=0, high=1024, whole=True)
COMPRESSION = Parameter(name="compression", low=1.0, high=64.0)


def lookahead_round(window: float, ngram: float, guesses: float, tokens: Count) -> Generation:
    """A round is one pass over (W + G)(N - 1) tokens: N - 1 rows of the window W, the first of which begins with the
    last accepted token, and G guesses of N - 1 tokens, all with logits, as the published code computes them.

    The token at place j of row r sees the first row up to j and its own column down to r: j + r, both from 1, less the
    one that is counted twice; the k-th of a guess sees the last accepted token and its own guess: k + 1.  Pairs:
    (N-1) W(W+1)/2 + W (N-1)(N-2)/2 + G ((N-1) N/2 + N-1).
    W = 1, N = 2, G = 0 is plain decoding.  Left out: the first N passes, which fill the window.
    Source: arXiv 2402.02057, section 3; https://github.com/hao-ai-lab/LookaheadDecoding, lade/models/llama.py.
    """
    rows = ngram - 1.0
    new_tokens = (window + guesses) * rows
    branch = rows * window * (window + 1.0) * 0.5 + window * rows * (rows - 1.0) * 0.5
    verification = guesses * (rows * ngram * 0.5 + rows)
    return Generation(
        shape=Shape(new_tokens=new_tokens, logit_positions=new_tokens, attended_new_pairs=branch + verification),
        tokens=tokens,
        facts={"window": window, "ngram": ngram, "guesses": guesses},
    )


def expected_from_guesses(rates: Acceptance, ngram: float, guesses: float) -> Count:
    """Expected tokens of a pass that verifies `guesses` independent n-grams, each accepted by these rates:
    E = 1 + sum over i = 1..N-1 of 1 - (1 - a_1 ... a_i)^G, which is N - sum of (1 - a^i)^G for a constant rate
    (arXiv 2402.02057, section 4, with G speculations of N - 1 tokens)."""
    expected = reached = 1.0
    for position in range(1, int(ngram)):
        reached *= rates.at(position)
        expected += 1.0 - (1.0 - reached) ** guesses
    return expected


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("window", "ngram", "guesses", "acceptance", "compression"))
    window, ngram = WINDOW.value(given, WHERE), NGRAM.value(given, WHERE)
    guesses = GUESSES.value(given, WHERE) if "guesses" in given else window
    generation = lookahead_round(window, ngram, guesses, _tokens(given, ngram, guesses))
    return change_generation(scheme_name("lookahead", text), lambda _: generation)


def _tokens(given: Mapping[str, str], ngram: float, guesses: float) -> Count:
    """Tokens of a pass: published, of all guesses together, or from the acceptance of one guess."""
    if ("compression" in given) == ("acceptance" in given):
        raise UserError(
            f"{WHERE}: give acceptance, a published preset or the rates of one guess, or compression, tokens per pass"
        )
    if "compression" in given:
        tokens = COMPRESSION.value(given, WHERE)
        if tokens > ngram:
            raise UserError(
                f"{WHERE}: compression is {tokens:g}; {ngram:g}-grams bring {ngram:g} tokens a pass at most"
            )
        return tokens
    rates = required_acceptance(WHERE, given)
    return rates.tokens(ngram - 1.0) if rates.name else expected_from_guesses(rates, ngram, guesses)


TECHNIQUE = Technique(
    name="lookahead",
    kind="speculation",
    summary="In one pass the model guesses n-grams by Jacobi iteration in a window ahead, and verifies those "
    "collected before that fit; no draft model.",
    parameters={
        "window": "tokens ahead that are guessed; 15 unless said",
        "ngram": "tokens of an n-gram; 5 unless said",
        "guesses": "n-grams that a pass verifies; as many as the window unless said",
        "acceptance": "rate of the tokens of one guess, or a published preset (lookahead-vicuna-7b: measured "
        "with window 7)",
        "compression": "instead: tokens of a pass",
    },
    formula="a pass computes (W + G)(N - 1) tokens, the last accepted one included; pairs among them "
    "(N-1) W(W+1)/2 + W (N-1)(N-2)/2 + G ((N-1) N/2 + N-1); E = N - sum over i = 1..N-1 of (1 - a^i)^G",
    source="Lookahead decoding arXiv 2402.02057; https://github.com/hao-ai-lab/LookaheadDecoding",
    example="llmviewer analyze llama-2-7b --hardware a100 "
    "--speculative lookahead,window=7,acceptance=lookahead-vicuna-7b",
    make=_make,
)
