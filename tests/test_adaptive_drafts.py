"""Draft lengths that adapt, draft models that learn online, and phrases that are copied instead of drafted."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.serving.generation import Draft
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.drafts import Stopping, adaptive_round, draft_round
from tests.answers import analyze, refusal

SMALL = Draft(name="tinyllama-1.1b", model=models.load("tinyllama-1.1b"))
SHARES = st.floats(0.0, 1.0)


@given(st.lists(SHARES, min_size=1, max_size=4), SHARES, SHARES, st.integers(1, 5))
def test_an_adaptive_round_matches_enumeration_of_all_outcomes(
    rates: list[float], one: float, other: float, most: int
) -> None:
    """Enumerates which tokens are right and after which of them drafting goes on.

    Tokens behind a wrong one count as wrong; those behind the end of drafting are never drafted.
    """
    right, wrong = max(one, other), min(one, other)
    accepted = Acceptance(rates=tuple(rates))
    passes = tokens = pairs = 0.0
    for agrees, on in product(product((True, False), repeat=most), repeat=2):
        correct = [all(agrees[: at + 1]) for at in range(most)]
        chance = prod(accepted.at(at + 1) if agrees[at] else 1 - accepted.at(at + 1) for at in range(most))
        chance *= prod(
            share if goes else 1 - share
            for goes, share in zip(on, (right if ok else wrong for ok in correct), strict=True)
        )
        drafted = (on.index(False) + 1) if False in on else most
        passes += chance * drafted
        pairs += chance * (drafted + 1) * (drafted + 2) / 2
        tokens += chance * (1 + sum(correct[:drafted]))
    made = adaptive_round(SMALL, float(most), accepted, Stopping(right=right, wrong=wrong))
    (draft,) = made.drafts
    assert (draft.passes, made.tokens, made.shape.new_tokens) == pytest.approx((passes, tokens, passes + 1))
    assert made.shape.attended_new_pairs == pytest.approx(pairs)
    assert made.spare_tokens == most


@given(SHARES, st.integers(1, 12))
def test_a_draft_that_always_goes_on_is_a_fixed_number_of_tokens(rate: float, tokens: int) -> None:
    accepted = Acceptance(rates=(rate,))
    fixed = draft_round(SMALL, float(tokens), accepted)
    always = adaptive_round(SMALL, float(tokens), accepted, Stopping(right=1.0, wrong=1.0))
    assert always.tokens == pytest.approx(fixed.tokens)
    assert always.drafts[0].passes == pytest.approx(tokens)
    assert always.drafts[0].shape.ahead == pytest.approx(fixed.drafts[0].shape.ahead)


@given(SHARES, st.integers(1, 12))
def test_an_oracle_drafts_one_token_more_than_it_keeps_or_the_most(rate: float, tokens: int) -> None:
    """1 + a + ... + a^(g-1) passes for 1 + a + ... + a^g tokens."""
    made = adaptive_round(SMALL, float(tokens), Acceptance(rates=(rate,)), Stopping(right=1.0, wrong=0.0))
    assert made.drafts[0].passes == pytest.approx(sum(rate**i for i in range(tokens)))
    assert made.tokens == pytest.approx(sum(rate**i for i in range(tokens + 1)))


class TestDraftModel:
    def found(self, words: str) -> dict[str, Any]:
        options = {"tensor_parallel_size": 4, "output_len": 16}
        return analyze("llama-2-70b", "h100", speculative=f"draft=tinyllama-1.1b,{words}", **options).to_dict()[
            "generation"
        ]

    def test_an_oracle_gains_more_over_the_best_fixed_number_than_a_classifier_has_gained(self) -> None:
        """DISCO (arXiv 2405.04304): 10 % on average over the best fixed number of draft tokens."""
        fixed, oracle = (self.found(f"tokens=best,acceptance=0.8{more}") for more in ("", ",adaptive=1/0"))
        assert oracle["speedup"] > 1.10 * fixed["speedup"]
        imperfect = self.found("tokens=best,acceptance=0.8,adaptive=0.95/0.3")
        assert fixed["speedup"] < imperfect["speedup"] < oracle["speedup"]

    def test_online_distillation_reduces_latency_as_published(self) -> None:
        """Online Speculative Decoding (arXiv 2310.07177): acceptance rises by 0.1 to 0.65, latency falls 1.42 to 2.17
        times.  From 0.3, distillation that avoids 40 % of the rejections raises it to 0.58, 70 % to 0.79."""
        before, *after = (
            self.found(f"tokens=5,acceptance=0.3{more}") for more in ("", ",distilled=0.4", ",distilled=0.7")
        )
        falls = [before["token_s"] / found["token_s"] for found in after]
        assert 1.42 < falls[0] < falls[1] < 2.6
        assert falls[0] == pytest.approx(sum(0.58**i for i in range(6)) / sum(0.3**i for i in range(6)), rel=1e-9)

    def test_a_self_drafting_model_may_stop_early_too(self) -> None:
        """Kangaroo (arXiv 2404.18911) drafts with the first layers and stops at low confidence."""
        words = "self,attention=0.6,mlp=0.6,tokens=6,acceptance=0.7"
        fixed, stops = (
            analyze("llama-2-7b", "h100", speculative=words + more, output_len=16).metrics()["tpot_s"]
            for more in ("", ",adaptive=0.95/0.2")
        )
        assert stops < fixed


class TestCopiedPhrases:
    def test_a_choice_is_a_query_and_its_products_with_all_phrases(self) -> None:
        # GPT-2: 768 x 768 weights of the query and 1,000 phrases of 768, 2 bytes each; one logit position
        found = analyze("gpt2", "v100", speculative="copy,length=2,phrases=1000", output_len=16).to_dict()
        (draft,) = found["generation"]["drafts"]
        assert draft["weights_bytes"] == 2 * 768 * (768 + 1000)
        assert draft["stage"]["matmul_flops"] == 2 * 768 * (768 + 1000)
        assert found["stages"]["decode"]["new_tokens"] == 2
        head = next(row for row in found["stages"]["decode"]["operators"] if row["name"] == "lm_head")
        assert head["output_shape"][0] == 1

    def test_fewer_steps_pay_for_the_phrases(self) -> None:
        """Copy Is All You Need (arXiv 2307.06962): "inference efficiency is comparable to token-level autoregressive
        models thanks to the reduction of decoding steps"; GPT-2's size, some 128 documents of 1,000 phrases or more."""
        plain = analyze("gpt2", "v100", output_len=128).metrics()["tpot_s"]
        speedups = [
            plain
            / analyze("gpt2", "v100", output_len=128, speculative=f"copy,length=2,phrases={n}").metrics()["tpot_s"]
            for n in (10_000, 200_000, 1_000_000)
        ]
        assert speedups == sorted(speedups, reverse=True)
        assert speedups[0] > 1.5 and 0.5 < speedups[1] < 1.2 and speedups[2] < 0.5

    def test_phrases_are_split_over_devices(self) -> None:
        one, two = (
            analyze("llama-2-7b", "h100", speculative="copy,length=2,phrases=64000", tensor_parallel_size=n).to_dict()
            for n in (1, 2)
        )
        weights = [found["generation"]["drafts"][0]["weights_bytes"] for found in (one, two)]
        assert weights == [2 * 4096 * (4096 + 64000), 2 * 4096 * (4096 + 32000)]


INVALID = {
    "draft=tinyllama-1.1b,tokens=4,acceptance=0.7,adaptive=0.9": "adaptive is '0.9'; allowed: two probabilities",
    "draft=tinyllama-1.1b,tokens=4,acceptance=0.7,adaptive=0.3/0.9": "the second not above the first: 0.95/0.3",
    "self,attention=0.5,mlp=0.5,tokens=4,acceptance=0.7,adaptive=x/y": "adaptive is 'x/y'",
    "copy,phrases=100": "length is missing",
    "copy,length=2": "phrases is missing",
    "copy,length=0.5,phrases=100": "length is '0.5'; allowed: a number from 1 to 64",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_options_are_a_one_line_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert INVALID[text] in refusal(["analyze", "llama-2-7b", "--hardware", "h100", "--speculative", text], capsys)
