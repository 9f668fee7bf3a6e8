"""Expected tokens per pass, calculated by hand and by relations; sources of published presets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.core.errors import UserError
from llmviewer.techniques import methods
from llmviewer.techniques.speculation import acceptance as ranks
from llmviewer.techniques.speculation.acceptance import Acceptance, from_lengths
from llmviewer.techniques.speculation.acceptance_presets import CONVENTIONS, FILE, PRESETS, RANKS
from llmviewer.techniques.speculation.method import read_acceptance, read_ranks

rates = st.floats(0.0, 1.0)
curves = st.lists(rates, min_size=1, max_size=8).map(tuple)
drafts = st.integers(0, 40)


def test_four_drafted_tokens_accepted_with_08_give_3_36_tokens() -> None:
    """1 + 0.8 + 0.64 + 0.512 + 0.4096 = (1 - 0.8^5) / 0.2"""
    assert Acceptance(rates=(0.8,)).tokens(4.0) == pytest.approx(3.3616, rel=1e-14)


def test_a_curve_multiplies_its_rates() -> None:
    """1 + 0.8 + 0.8 x 0.5 + 0.8 x 0.5 x 0.25"""
    assert Acceptance(rates=(0.8, 0.5, 0.25)).tokens(3.0) == pytest.approx(2.3, rel=1e-14)


def test_a_curve_continues_with_its_last_rate() -> None:
    """0.8, 0.5, 0.5: 1 + 0.8 + 0.4 + 0.2"""
    curve = Acceptance(rates=(0.8, 0.5))
    assert [curve.at(position) for position in (1, 2, 3, 9)] == [0.8, 0.5, 0.5, 0.5]
    assert curve.tokens(3.0) == pytest.approx(2.4, rel=1e-14)


@given(a=st.floats(0.0, 0.999), drafted=drafts)
def test_a_constant_rate_has_leviathans_closed_form(a: float, drafted: int) -> None:
    assert Acceptance(rates=(a,)).tokens(float(drafted)) == pytest.approx((1 - a ** (drafted + 1)) / (1 - a), rel=1e-9)


@given(drafted=drafts)
def test_all_accepted_gives_one_token_more_than_drafted(drafted: int) -> None:
    assert Acceptance(rates=(1.0,)).tokens(float(drafted)) == drafted + 1.0


@given(curve=curves)
def test_no_draft_tokens_give_one_token_per_pass(curve: tuple[float, ...]) -> None:
    assert Acceptance(rates=curve).tokens(0.0) == 1.0


@given(curve=curves, drafted=drafts, by=rates)
def test_more_acceptance_never_gives_fewer_tokens(curve: tuple[float, ...], drafted: int, by: float) -> None:
    plain = Acceptance(rates=curve)
    assert plain.distilled(by).tokens(float(drafted)) >= plain.tokens(float(drafted)) * (1 - 1e-12)


@given(curve=curves, drafted=st.lists(drafts, min_size=1, max_size=5))
def test_an_array_of_draft_lengths_equals_single_calls(curve: tuple[float, ...], drafted: list[int]) -> None:
    acceptance = Acceptance(rates=curve)
    swept = acceptance.tokens(np.array(drafted, dtype=np.float64))
    assert list(np.ravel(swept)) == [acceptance.tokens(float(n)) for n in drafted]


@given(curve=curves, more=st.integers(1, 5), drafted=drafts)
def test_drafting_one_more_token_never_gives_fewer(curve: tuple[float, ...], more: int, drafted: int) -> None:
    acceptance = Acceptance(rates=curve)
    assert acceptance.tokens(float(drafted + more)) >= acceptance.tokens(float(drafted))


def test_distillation_removes_a_share_of_the_rejections() -> None:
    """A quarter of 40 % rejections is removed: 70 % accepted."""
    assert Acceptance(rates=(0.6,)).distilled(0.25).rates == pytest.approx((0.7,))
    assert Acceptance(rates=(0.6,)).distilled(1.0).rates == (1.0,)
    assert Acceptance(rates=(0.6,)).distilled(0.0).rates == (0.6,)


def test_three_samples_at_rate_one_half_accept_seven_eighths() -> None:
    assert ranks.from_independent_draws(Acceptance(rates=(0.5,)), 3).rates == ((0.5, 0.25, 0.125),)
    assert ranks.from_independent_draws(Acceptance(rates=(0.5,)), 1).rates == ((0.5,),)


def test_acceptance_lengths_are_inverted_to_rates_gain_by_gain() -> None:
    """InferenceX, Kimi K2.5 with EAGLE-3: 1.83, 2.43, 2.88: 0.83 / 1, 0.60 / 0.83, 0.45 / 0.60"""
    acceptance = from_lengths({1: 1.83, 2: 2.43, 3: 2.88})
    assert acceptance.rates == pytest.approx((0.83, 0.60 / 0.83, 0.75))


def test_a_single_length_is_inverted_to_one_rate() -> None:
    """1 + 0.5 + 0.25 + 0.125 = 1.875"""
    assert from_lengths({3: 1.875}).rates == pytest.approx((0.5, 0.5, 0.5), abs=1e-12)


def test_the_rate_is_constant_between_distant_lengths() -> None:
    """After 0.8: 1.8 + 0.8 (0.5 + 0.25 + 0.125) = 2.5"""
    assert from_lengths({1: 1.8, 4: 2.5}).rates == pytest.approx((0.8, 0.5, 0.5, 0.5), abs=1e-12)


@given(curve=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=6).map(tuple))
def test_lengths_invert_to_the_rates_they_were_computed_from(curve: tuple[float, ...]) -> None:
    acceptance = Acceptance(rates=curve)
    found = from_lengths({n: float(acceptance.tokens(float(n))) for n in range(1, len(curve) + 1)})
    assert found.rates == pytest.approx(curve, abs=1e-7)


@given(a=rates, drafted=st.integers(1, 12))
def test_one_length_inverts_to_its_constant_rate(a: float, drafted: int) -> None:
    length = float(Acceptance(rates=(a,)).tokens(float(drafted)))
    assert from_lengths({drafted: length}).tokens(float(drafted)) == pytest.approx(length, rel=1e-9)


@pytest.mark.parametrize("lengths", [{2: 3.5}, {1: 0.9}, {1: 1.8, 2: 1.7}, {1: 1.5, 2: 2.2}])
def test_impossible_lengths_are_rejected(lengths: dict[int, float]) -> None:
    with pytest.raises(UserError, match="no rates from 0 to 1"):
        from_lengths(lengths)


def test_spellings_of_acceptance_are_parsed() -> None:
    assert read_acceptance("0.8").rates == (0.8,)
    assert read_acceptance("0.8/0.7/0.6").rates == (0.8, 0.7, 0.6)
    assert read_acceptance("eagle3-kimi-k2.5").tokens(4.0) == pytest.approx(3.24)
    assert [str(read_acceptance(text)) for text in ("0.8/0.75", "mtp-qwen3.5")] == [
        "0.8/0.75",
        "mtp-qwen3.5",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.2", r"speculative llma: acceptance is '1.2'; allowed: rates from 0 to 1"),
        ("0.8/-0.1", "allowed: rates from 0 to 1"),
        ("nan", "allowed: rates from 0 to 1"),
        ("eagle3-kimi-k25", "did you mean 'eagle3-kimi-k2.5'"),
        ("0.8/", "unknown acceptance '0.8/'"),
        ("", "unknown acceptance ''"),
    ],
)
def test_bad_acceptance_is_a_one_line_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        methods.make("speculative", f"llma,acceptance={text}")
    assert "\n" not in str(raised.value)


def test_success_rates_of_the_first_choices_become_rates_by_rank() -> None:
    """SpecInfer, Alpaca, greedy: 68 %, 77 %, 81 %"""
    found = ranks.from_success_rates([[0.68, 0.77, 0.81]])
    assert [found.at(1, rank) for rank in (1, 2, 3, 4)] == pytest.approx([0.68, 0.09, 0.04, 0.0])
    assert found.at(7, 2) == found.at(1, 2)


def test_spellings_of_ranks_are_parsed() -> None:
    assert read_ranks("0.6/0.15/0.05").rates == ((0.6, 0.15, 0.05),)
    assert read_ranks("medusa-vicuna-7b").at(2, 1) == 0.316


@pytest.mark.parametrize("text", ["0.5/0.6", "0.9/0.2", "1.5", "-0.1", "nan"])
def test_ranks_that_rise_or_sum_to_over_1_are_rejected(text: str) -> None:
    with pytest.raises(UserError, match="must fall from rank to rank"):
        read_ranks(text)


def test_an_unknown_name_of_ranks_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'medusa-vicuna-7b'"):
        read_ranks("medusa-vicuna7b")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_states_its_source_and_counting_rule(name: str) -> None:
    preset = PRESETS[name]
    assert "arXiv " in preset.source or "https://" in preset.source
    assert preset.convention in CONVENTIONS
    assert preset.target and preset.dataset and preset.method
    assert preset.drafted >= 1


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_rates_reproduce_its_lengths_with_the_bonus_token(name: str) -> None:
    preset = PRESETS[name]
    for drafted, length in preset.lengths.items():
        assert 1.0 <= length <= drafted + 1.0
        assert preset.acceptance.tokens(float(drafted)) == pytest.approx(length, rel=1e-9)


@pytest.mark.parametrize("name", RANKS)
def test_ranks_state_their_source(name: str) -> None:
    assert "arXiv " in RANKS[name].source or "https://" in RANKS[name].source
    assert RANKS[name].target and RANKS[name].dataset


def test_preset_names_are_unique() -> None:
    text = Path(FILE).read_text(encoding="utf-8")
    assert text.count("name: ") == len(PRESETS) + len(RANKS)


def test_the_bonus_token_is_added_for_sources_that_exclude_it() -> None:
    assert CONVENTIONS["without bonus token"] - CONVENTIONS["with bonus token"] == 1.0


def test_leviathans_acceptance_of_t5_small_gives_3_6_tokens_with_7_drafted() -> None:
    """(1 - 0.75^8) / 0.25 = 3.5995"""
    assert read_acceptance("draft-t5-small-translation").tokens(7.0) == pytest.approx(3.5995, abs=1e-4)


def test_deepseek_v3_reaches_1_8_times_the_tokens() -> None:
    """85 % of second tokens accepted: 1.85 tokens per pass; the report states 1.8 times the tokens per second."""
    assert read_acceptance("mtp-deepseek-v3").tokens(1.0) == 1.85
