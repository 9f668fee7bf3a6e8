"""`--speculative lookahead`: the model guesses n-grams in a lookahead window and verifies matching ones."""

from __future__ import annotations

from collections.abc import Mapping

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.serving.generation import Generation, PassShape
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.draft_options import required_acceptance, scheme_name
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

WHERE = "--speculative lookahead"
#: The paper's window for 7B on an A100 (10 for 13B, 7 for 34B), with as many guesses.
WINDOW = Parameter(name="window", default=15, low=1, high=1024, whole=True)
NGRAM = Parameter(name="ngram", default=5, low=2, high=64, whole=True)
GUESSES = Parameter(name="guesses", low=0, high=1024, whole=True)
COMPRESSION = Parameter(name="compression", low=1.0, high=64.0)


def lookahead_round(window: float, ngram: float, guesses: float, tokens: Count) -> Generation:
    """A round: one pass over (W + G)(N - 1) tokens, all with logits, as in the published code.

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
    return Generation(
        shape=PassShape(new_tokens=new_tokens, logit_positions=new_tokens, attended_new_pairs=branch + verification),
        tokens=tokens,
        facts={"window": window, "ngram": ngram, "guesses": guesses},
    )


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


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("window", "ngram", "guesses", "acceptance", "compression"))
    window, ngram = WINDOW.value(given, WHERE), NGRAM.value(given, WHERE)
    guesses = GUESSES.value(given, WHERE) if "guesses" in given else window
    generation = lookahead_round(window, ngram, guesses, _tokens(given, ngram, guesses))
    return change_generation(scheme_name("lookahead", text), lambda _: generation)


def _tokens(given: Mapping[str, str], ngram: float, guesses: float) -> Count:
    """Tokens per pass: given, from a published preset, or from the acceptance of one guess."""
    if ("compression" in given) == ("acceptance" in given):
        raise UserError(
            f"{WHERE}: give acceptance (a published preset, or rates of one guess) or compression (tokens per pass)"
        )
    if "compression" in given:
        tokens = COMPRESSION.value(given, WHERE)
        if tokens > ngram:
            raise UserError(
                f"{WHERE}: compression is {tokens:g}; {ngram:g}-grams yield at most {ngram:g} tokens per pass"
            )
        return tokens
    rates = required_acceptance(WHERE, given)
    return rates.tokens(ngram - 1.0) if rates.name else expected_from_guesses(rates, ngram, guesses)


TECHNIQUE = Technique(
    name="lookahead",
    kind="speculation",
    summary="Each pass guesses n-grams by Jacobi iteration in a lookahead window and verifies matching n-grams from "
    "earlier passes; no draft model.",
    parameters={
        "window": "lookahead positions that are guessed (default: 15)",
        "ngram": "tokens of an n-gram (default: 5)",
        "guesses": "n-grams verified per pass (default: window)",
        "acceptance": "acceptance rate of the tokens of one guess, or a published preset (lookahead-vicuna-7b: "
        "measured with window 7)",
        "compression": "alternative to acceptance: tokens per pass",
    },
    formula="a pass computes (W + G)(N - 1) tokens, including the last accepted one; pairs among them "
    "(N-1) W(W+1)/2 + W (N-1)(N-2)/2 + G ((N-1) N/2 + N-1); E = N - sum over i = 1..N-1 of (1 - a^i)^G",
    source="Lookahead decoding arXiv 2402.02057; https://github.com/hao-ai-lab/LookaheadDecoding",
    example="llmviewer analyze llama-2-7b --hardware a100 "
    "--speculative lookahead,window=7,acceptance=lookahead-vicuna-7b",
    make=_make,
)
