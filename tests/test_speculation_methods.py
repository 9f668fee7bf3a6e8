"""Methods of --speculative without a draft model, and properties of every method."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.analysis.analysis import Analysis
from llmviewer.serving.generation import Generation
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.copied import lookup_round, rest
from llmviewer.techniques.speculation.guessed import expected_from_guesses, jacobi, lookahead_pass
from tests.answers import analyze, refusal

MODELS = ("llama-2-7b", "gemma-2-9b", "qwen3-30b-a3b", "deepseek-v2-lite", "jamba-v0.1")
#: Option texts of every method with no draft tokens or one token per pass.
WITHOUT_DRAFTS = (
    "draft=tinyllama-1.1b,tokens=0,acceptance=0.7",
    "tree,draft=tinyllama-1.1b,budget=0",
    "fallback,draft=tinyllama-1.1b,fallback=0.2,tokens=0",
    "ngram,tokens=0",
    "llma,tokens=0,acceptance=0.7",
    "rest,nodes=0",
    "lookahead,window=1,ngram=2,guesses=0,acceptance=0.7",
    "jacobi,tokens=1,iterations=1",
)
WITH_DRAFTS = (
    "draft=tinyllama-1.1b,tokens=4,acceptance=0.7",
    "tree,draft=tinyllama-1.1b,widths=2/2/1",
    "tree,draft=tinyllama-1.1b,budget=12,acceptance=0.6",
    "tree,draft=tinyllama-1.1b+opt-125m,widths=1/2,overlap=0.5",
    "fallback,draft=tinyllama-1.1b,fallback=0.2,rollback=0.1",
    "ngram,lookup_us=50",
    "llma,tokens=20,acceptance=0.9,match=0.5",
    "rest",
    "lookahead,window=7,acceptance=lookahead-vicuna-7b",
    "jacobi,iterations=6.5",
    "draft=tinyllama-1.1b,tokens=6,acceptance=0.7,adaptive=0.95/0.3",
    "copy,length=2,phrases=10000",
)
RATES = st.floats(0.0, 1.0)
TOKENS = st.integers(1, 40).map(float)


def answer(model: str, speculative: str = "none", **options: Any) -> Analysis:
    options = {"output_len": 16, "hardware": "h100", "speculative": speculative, **options}
    return analyze(model, **options).analysis


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nothing", WITHOUT_DRAFTS)
def test_no_draft_tokens_equal_plain_decoding_bit_for_bit(model: str, nothing: str) -> None:
    own, plain = answer(model, nothing), answer(model)
    assert (own.tpot_s, own.ttft_s, own.e2e_s) == (plain.tpot_s, plain.ttft_s, plain.e2e_s)
    for figure in fields(plain.memory):
        assert np.array_equal(getattr(own.memory, figure.name), getattr(plain.memory, figure.name))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", WITH_DRAFTS)
def test_single_points_equal_the_sweep_and_rounds_cost_at_least_a_step(model: str, method: str) -> None:
    batches, prompts = [1, 8, 300], [100, 2000, 5000]
    swept = answer(model, method, batch_size=batches, input_len=prompts)
    for at, (batch, prompt) in enumerate(zip(batches, prompts, strict=True)):
        point = answer(model, method, batch_size=batch, input_len=prompt)
        assert point.tpot_s[0] == swept.tpot_s[at]
        assert point.memory.total_bytes[0] == np.broadcast_to(swept.memory.total_bytes, 3)[at]
    plain = answer(model, batch_size=batches, input_len=prompts)
    generated, decoded = (one.schedule.decode(one.passes.time_s) for one in (swept, plain))
    assert (generated >= decoded * (1.0 - 1e-12)).all()
    assert (swept.ttft_s >= plain.ttft_s).all() and (swept.memory.total_bytes >= plain.memory.total_bytes).all()


@given(RATES, RATES, TOKENS, st.floats(0.0, 1.0))
def test_tokens_rise_with_acceptance_up_to_all_draft_tokens(
    one: float, other: float, tokens: float, match: float
) -> None:
    def expected(rate: float) -> tuple[Any, ...]:
        rates = Acceptance(rates=(rate,))
        rounds = (
            lookup_round(tokens, rates=rates, match=match, lookup_s=0.0),
            rest(nodes=tokens, depth=tokens, acceptance=rates),
        )
        return (*(each.tokens for each in rounds), expected_from_guesses(rates, tokens + 1.0, 3.0))

    low, high, most = (expected(rate) for rate in (min(one, other), max(one, other), 1.0))
    assert all(1.0 - 1e-9 <= a <= b + 1e-9 for a, b in zip(low, high, strict=True))
    assert most == pytest.approx((1.0 + match * tokens, tokens + 1.0, tokens + 1.0))


def test_copied_tokens_are_a_chain_and_passes_without_a_match_yield_one_token() -> None:
    rates = Acceptance(rates=(0.5,))
    always = lookup_round(2.0, rates=rates, match=1.0, lookup_s=0.0)
    seldom = lookup_round(2.0, rates=rates, match=0.25, lookup_s=3e-6)
    assert (always.tokens, always.shape.new_tokens, always.shape.attended_new_pairs) == (1.75, 3.0, None)
    assert seldom.tokens == 1.0 + 0.25 * 0.75
    # 3 tokens in a quarter of the passes, with 1 + 2 + 3 pairs among them; one token in the others
    assert seldom.shape.new_tokens == seldom.shape.logit_positions == 0.25 * 3 + 0.75
    assert seldom.shape.attended_new_pairs == 0.25 * 6 + 0.75
    assert seldom.extra_s == 3e-6


def test_rates_of_drafts_are_of_the_passes_that_find_one() -> None:
    """993 of 1,814 passes drafted in https://github.com/vllm-project/vllm/pull/24344; lengths include all passes."""
    of_rates, stated, of_lengths, every = (
        answer("llama-2-7b", f"ngram,tokens=10,acceptance={words}").system.generation.tokens
        for words in ("1", "1,match=1", "ngram-vicuna-7b", "ngram-vicuna-7b,match=1")
    )
    assert (of_rates, stated) == (pytest.approx(1.0 + 993 / 1814 * 10.0, rel=0.005), 11.0)
    assert of_lengths == every == pytest.approx(1.73)


def test_a_search_on_the_host_adds_to_every_round() -> None:
    free, requested = (answer("llama-2-7b", f"ngram,acceptance=0.5,match=1,tokens=1,lookup_us={us}") for us in (0, 90))
    assert requested.tpot_s[0] == pytest.approx(free.tpot_s[0] + 90e-6 / 1.5)


def test_phrases_of_a_datastore_branch_at_the_root() -> None:
    """Two phrases of three tokens: their tokens attend to 2, 3 and 4 tokens, the root to itself."""
    found = rest(nodes=6.0, depth=3.0, acceptance=Acceptance(rates=(0.5,)))
    assert found.shape.attended_new_pairs == 1 + 2 * (2 + 3 + 4)
    assert found.shape.new_tokens == found.shape.logit_positions == 7.0
    assert found.tokens == 1 + 0.5 + 0.25 + 0.125


def test_rest_matches_published_values() -> None:
    """Spec-Bench, Vicuna-7B: 1.82 tokens per pass, 1.48 times as fast; the datastore needs no device memory."""
    own, plain = answer("llama-2-7b", "rest", hardware="a100"), answer("llama-2-7b", hardware="a100")
    assert own.system.generation.tokens == pytest.approx(1.82)
    assert plain.tpot_s[0] / own.tpot_s[0] == pytest.approx(1.48, rel=0.1)
    assert own.system.generation.facts["datastore_bytes_on_host"] == 12e9
    assert own.memory.weights_bytes == plain.memory.weights_bytes


def test_lookahead_tokens_attend_to_their_row_and_column() -> None:
    """Window 2, 3-grams, 1 guess.  Rows: t0 t1, a0 a1; the guess: g1 g2.

    Attended tokens: t0 t0; t1 t0 t1; a0 t0 a0; a1 t0 t1 a1; g1 t0 g1; g2 t0 g1 g2: 1 + 2 + 2 + 3 + 2 + 3.
    """
    one = lookahead_pass(2.0, 3.0, 1.0)
    assert one.new_tokens == one.logit_positions == 6.0 == (2 + 1) * (3 - 1)
    assert one.attended_new_pairs == 13.0


@given(st.integers(1, 20), st.integers(2, 8), st.integers(0, 20))
def test_lookahead_pairs_match_its_mask(window: int, ngram: int, guesses: int) -> None:
    rows = ngram - 1
    branch = sum((place + 1) + row for row in range(rows) for place in range(window))
    verification = guesses * sum(1 + place for place in range(1, rows + 1))
    made = lookahead_pass(float(window), float(ngram), float(guesses))
    assert made.attended_new_pairs == branch + verification
    assert made.new_tokens == (window + guesses) * (ngram - 1)


@given(RATES, st.integers(2, 8).map(float), st.integers(0, 20).map(float))
def test_lookahead_acceptance_matches_the_paper(rate: float, ngram: float, guesses: float) -> None:
    """E = (gamma + 1) - sum (1 - a^i)^b of b speculations of gamma tokens (arXiv 2402.02057)."""
    rates = Acceptance(rates=(rate,))
    paper = ngram - sum((1.0 - rate**i) ** guesses for i in range(1, int(ngram)))
    assert expected_from_guesses(rates, ngram, guesses) == pytest.approx(paper)
    assert expected_from_guesses(rates, ngram, 1.0) == pytest.approx(rates.tokens(ngram - 1.0))


def test_a_published_lookahead_length_covers_all_guesses() -> None:
    published = answer("llama-2-7b", "lookahead,window=7,acceptance=lookahead-vicuna-7b").system.generation
    given_so = answer("llama-2-7b", "lookahead,window=7,compression=1.66").system.generation
    assert published.tokens == pytest.approx(given_so.tokens) == pytest.approx(1.66)
    assert published.shape.new_tokens == (7 + 7) * 4


@given(st.integers(1, 64).map(float), st.floats(0.0, 1.0))
def test_a_jacobi_block_yields_its_tokens_after_its_iterations(tokens: float, share: float) -> None:
    iterations = 1.0 + share * (tokens - 1.0)
    block = jacobi(tokens=tokens, iterations=iterations)
    assert block.tokens == tokens / iterations and 1.0 - 1e-12 <= block.tokens <= tokens
    assert (block.shape.new_tokens, block.shape.attended_new_pairs) == (tokens, None)


def test_jacobi_is_slower_than_plain_decoding_at_worst_and_fastest_with_one_iteration() -> None:
    plain = answer("llama-2-7b").tpot_s[0]
    best, worst = (answer("llama-2-7b", f"jacobi,iterations={passes}").tpot_s[0] for passes in (1, 16))
    assert best < plain / 15 and plain < worst < 1.1 * plain


def test_the_best_number_of_copied_tokens_is_never_slower_than_another() -> None:
    best = answer("llama-2-7b", "ngram,tokens=best,acceptance=0.6", batch_size=[1, 64, 512])
    for tokens in (0, 1, 3, 16):
        other = answer("llama-2-7b", f"ngram,tokens={tokens},acceptance=0.6", batch_size=[1, 64, 512])
        assert (best.tpot_s <= other.tpot_s).all()
    assert (np.diff(np.asarray(best.system.generation.shape.new_tokens)) <= 0).all()


INVALID = {
    "ngram,tokens=-1": "allowed: a whole number from 0",
    "ngram,acceptance=1.2": "allowed: rates from 0 to 1",
    "ngram,match=2": "match is '2'; allowed: a number from 0 to 1",
    "ngram,window=3": "unknown parameter of --speculative ngram 'window'",
    "llma": "acceptance is missing",
    "rest,nodes=4,depth=8": "4 nodes do not reach a depth of 8",
    "rest,retrieval_us=x": "retrieval_us is 'x'; allowed",
    "lookahead": "give acceptance",
    "lookahead,acceptance=0.5,compression=2": "give acceptance",
    "lookahead,compression=6": "5-grams yield at most 5 tokens per pass",
    "lookahead,ngram=1,acceptance=0.5": "ngram is '1'; allowed: a whole number from 2",
    "jacobi": "iterations is missing",
    "jacobi,tokens=4,iterations=5": "a block of 4 tokens converges after at most 4",
    "jacobi,iterations=0.5": "allowed: a number from 1",
    "nglam": "ngram",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_options_are_a_one_line_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert INVALID[text] in refusal(["analyze", "llama-2-7b", "--hardware", "h100", "--speculative", text], capsys)


def test_generations_state_their_verification_step() -> None:
    made: Generation = answer("llama-2-7b", "ngram").system.generation
    assert made.facts["drafted_tokens"] == 10.0 and made.facts["acceptance"] == "ngram-vicuna-7b"
