"""Trees of draft tokens, several drafts, and drafts that stop at low confidence."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer import models
from llmviewer.analysis.analysis import Analysis
from llmviewer.serving.generation import Draft
from llmviewer.techniques.speculation import acceptance as ranks
from llmviewer.techniques.speculation import trees
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.drafts import draft_passes, fallback_rounds, levels, tree_round
from llmviewer.techniques.speculation.method import read_ranks
from tests.answers import analyze, refusal

SMALL = Draft(name="tinyllama-1.1b", model=models.load("tinyllama-1.1b"))
WIDTHS = st.lists(st.integers(1, 3), min_size=1, max_size=5)
RATES = st.floats(0.0, 1.0)


def answer(model: str, speculative: str = "none", **options: Any) -> Analysis:
    options = {"output_len": 16, "hardware": "h100", "speculative": speculative, **options}
    return analyze(model, **options).analysis


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-2-9b", "qwen3-30b-a3b", "deepseek-v2-lite", "jamba-v0.1"])
@pytest.mark.parametrize("rates", ["0.7", "0.8/0.6/0.3"])
def test_a_tree_of_width_one_equals_a_chain_bit_for_bit(model: str, rates: str) -> None:
    batches = {"batch_size": [1, 40], "input_len": [300, 6000]}
    chain = answer(model, f"draft=tinyllama-1.1b,tokens=4,acceptance={rates}", **batches)
    for text in ("widths=1/1/1/1", "budget=4,depth=4"):
        rate = rates if "widths" in text else "1"
        tree = answer(model, f"tree,draft=tinyllama-1.1b,{text},acceptance={rate}", **batches)
        assert (tree.memory.total_bytes == chain.memory.total_bytes).all() and (tree.ttft_s == chain.ttft_s).all()
        if rate == rates:
            assert (tree.tpot_s == chain.tpot_s).all()
        else:
            assert tree.system.generation.tokens == 5.0


def test_the_published_expansion_by_hand() -> None:
    """<1, 1, 3, 1>: 1 + 1 + 3 + 3 = 8 nodes, at depths 1, 2, 3 3 3, 4 4 4; the root sees itself."""
    tree = trees.full([1, 1, 3, 1])
    made = tree_round([SMALL], [tree], [ranks.from_independent_draws(Acceptance(rates=(0.5,)), 3)], 0.0)
    assert made.shape.new_tokens == made.shape.logit_positions == 9.0
    assert made.shape.attended_new_pairs == 1 + 2 + 3 + 3 * 4 + 3 * 5
    # 0.5, 0.25, then one of three samples is accepted with 1 - 0.5^3, then each with 0.5
    assert made.tokens == pytest.approx(1 + 0.5 + 0.25 + 0.25 * 0.875 + 0.25 * 0.875 * 0.5)
    one, three = made.drafts
    assert (one.passes, one.shape.new_tokens, one.shape.ahead, one.shape.attended_new_pairs) == (3.0, 1.0, 1.0, None)
    # the fourth pass: three nodes at depth 3, which attend to the root, depths 1 and 2, and themselves; root and depths
    # 1 and 2 are in the cache
    assert (three.passes, three.shape.new_tokens, three.shape.ahead) == (1.0, 3.0, 3.0)
    assert three.shape.attended_new_pairs == 3.0
    assert (one.caches, one.shared, three.caches, three.shared) == (True, (), False, None)


@given(WIDTHS)
def test_every_node_with_children_is_processed_once_and_sees_its_path(widths: list[int]) -> None:
    tree = trees.full(widths)
    seen = sum(level.nodes * level.before + level.pairs for level in levels(tree))
    depths = (0, *trees.depths(tree))
    inner = set(tree)
    assert sum(level.nodes for level in levels(tree)) == len(inner) and len(levels(tree)) == len(widths)
    assert seen == sum(depths[node] + 1 for node in inner)
    drafts = draft_passes(SMALL, tree)
    assert sum(one.passes for one in drafts) == len(widths)
    assert sum(one.passes * one.shape.new_tokens for one in drafts) == len(inner)
    assert [one.caches for one in drafts] == [True] + [False] * (len(drafts) - 1)


def test_specinfer_matches_published_values() -> None:
    """Table 2 of arXiv 2305.09781, Alpaca: <1,1,k,1,1,1,1,1> from the success rates of table 1, bonus token counted.

    Sampling rejects some drafts that table 1 counts as successes, most if there is only one.
    """
    published = {"draft-llama-68m": (2.95, 3.07, 3.21, 3.33, 3.43), "draft-llama-68m-sampled": (1.79, 2.11, 2.26, 2.32)}
    within = {"draft-llama-68m": 0.06, "draft-llama-68m-sampled": 0.22}
    for name, tokens in published.items():
        rates = read_ranks(name)
        for width, measured in enumerate(tokens, 1):
            predicted = trees.expected(trees.full([1, 1, width, 1, 1, 1, 1, 1]), rates)
            assert predicted == pytest.approx(measured, rel=within[name])


@given(RATES, RATES, WIDTHS)
def test_tokens_rise_with_acceptance_up_to_depth_plus_one(one: float, other: float, widths: list[int]) -> None:
    tree = trees.full(widths)

    def expected(rate: float) -> float:
        return trees.expected(tree, ranks.from_independent_draws(Acceptance(rates=(rate,)), max(widths)))

    low, high = (expected(rate) for rate in (min(one, other), max(one, other)))
    assert 1.0 - 1e-12 <= low <= high + 1e-9
    assert expected(1.0) == len(widths) + 1.0


@given(st.integers(1, 30), st.floats(0.05, 0.95))
def test_the_best_tree_yields_at_least_as_many_tokens_as_any_full_tree_of_its_size(budget: int, rate: float) -> None:
    rates = ranks.from_independent_draws(Acceptance(rates=(rate,)), budget)
    best = trees.expected(trees.best(budget, rates, 8), rates)
    for widths in ([budget], [1] * min(budget, 8), [2, 2, 2, 2], [3, 1, 1, 1]):
        tree = trees.full(widths)
        assert len(tree) > budget or trees.expected(tree, rates) <= best + 1e-12


def test_all_draft_passes_of_a_tree_keep_the_drafts_formats() -> None:
    """--quantization applies to the model; the pass over three nodes reads the same weights as those over one."""
    words = {"quantization": "w4a16", "tensor_parallel_size": 4}
    one, three = answer("llama-2-70b", "tree,draft=tinyllama-1.1b,widths=1/1/3/1", **words).drafts
    assert one[1].schedule.decode(one[1].passes.read_bytes)[0] == pytest.approx(
        three[1].schedule.decode(three[1].passes.read_bytes)[0], rel=0.01
    )


def test_two_drafts_are_both_stored_and_run_and_share_the_root() -> None:
    both = answer("llama-2-7b", "tree,draft=tinyllama-1.1b+opt-125m,widths=1/1,acceptance=0.6+0.5")
    single = [answer("llama-2-7b", f"tree,draft={name},widths=1/1") for name in ("tinyllama-1.1b", "opt-125m")]
    plain = answer("llama-2-7b")
    for figure in ("weights_bytes", "kv_cache_bytes"):
        own = [getattr(one.memory, figure) - getattr(plain.memory, figure) for one in single]
        assert getattr(both.memory, figure) > sum(own) + 0.99 * getattr(plain.memory, figure)
    made = both.system.generation
    # chains of two tokens: 1, then 1 - 0.4 x 0.5, then 1 - (1 - 0.36)(1 - 0.25)
    assert made.tokens == pytest.approx(1 + 0.8 + 1 - 0.64 * 0.75)
    assert made.shape.new_tokens == 5.0 and made.shape.attended_new_pairs == 1 + 2 * (2 + 3)
    assert [draft.name for draft in made.drafts] == ["tinyllama-1.1b", "opt-125m"]
    assert both.ttft_s[0] == pytest.approx(sum(one.ttft_s[0] for one in single) - plain.ttft_s[0])
    same = answer("llama-2-7b", "tree,draft=tinyllama-1.1b+opt-125m,widths=1/1,acceptance=0.6+0.5,overlap=1")
    assert same.system.generation.tokens == 1 + 0.6 + 0.36 and same.system.generation.shape.new_tokens == 3.0


def test_trees_gain_more_at_small_batches_and_cost_more_at_large_ones() -> None:
    words = {"batch_size": [1, 256], "tensor_parallel_size": 4}
    chain, tree, plain = (
        answer("llama-2-70b", text, **words)
        for text in (
            "tree,draft=tinyllama-1.1b,widths=1/1/1/1",
            "tree,draft=tinyllama-1.1b,widths=3/2/2/1",
            "none",
        )
    )
    assert tree.tpot_s[0] < chain.tpot_s[0] < plain.tpot_s[0]
    assert tree.tpot_s[1] > chain.tpot_s[1]


def test_two_checkpoints_of_one_architecture_are_stored_and_run_apart() -> None:
    """SpecInfer tunes several small models of one architecture on the text that those before it got wrong.

    Two chains of one token with 0.5 and 0.4: 1 + (1 - 0.5 x 0.6) = 1.7 tokens; twice the weights and two draft passes.
    """
    text = "tree,draft=tinyllama-1.1b{},widths=1,ranks=0.5{}"
    one, two = (answer("llama-2-7b", text.format(*more)) for more in (("", ""), ("+tinyllama-1.1b", "+0.4")))
    assert [float(np.max(of.system.generation.tokens)) for of in (one, two)] == pytest.approx([1.5, 1.7])
    plain = float(np.max(answer("llama-2-7b").memory.weights_bytes))
    drafts = [float(np.max(of.memory.weights_bytes)) - plain for of in (one, two)]
    assert drafts[1] == 2 * drafts[0] == 2 * 2 * SMALL.model.parameters
    assert [draft.name for draft, _ in two.drafts] == ["tinyllama-1.1b", "tinyllama-1.1b (2)"]
    assert two.prefill_s > one.prefill_s


@given(RATES, RATES, st.integers(1, 8))
def test_a_stopping_draft_matches_enumeration_of_all_outcomes(fallback: float, rollback: float, most: int) -> None:
    """Enumerates every sequence of confident and unconfident tokens and every position of a rollback."""
    passes = kept = pairs = tokens = 0.0
    for confident in product((True, False), repeat=most):
        chance = np.prod([1.0 - fallback if each else fallback for each in confident])
        written = confident.index(False) if False in confident else most
        passes += chance * min(written + 1, most)
        kept += chance * written
        pairs += chance * (written + 1) * (written + 2) / 2
        taken_back = sum((1 - rollback) ** (at - 1) * rollback * at for at in range(1, written + 1))
        tokens += chance * (taken_back + (1 - rollback) ** written * (written + 1))
    made = fallback_rounds(draft=SMALL.model, fallback=fallback, rollback=rollback, tokens=float(most))
    (draft,) = made.drafts
    assert (draft.passes, made.tokens) == pytest.approx((passes, tokens))
    assert made.shape.new_tokens == made.shape.logit_positions == pytest.approx(kept + 1)
    assert made.shape.attended_new_pairs is None or made.shape.attended_new_pairs == pytest.approx(pairs)


@pytest.mark.parametrize("model", ["llama-2-7b", "gemma-2-9b", "qwen3-30b-a3b"])
def test_a_draft_that_never_stops_equals_a_chain_bit_for_bit(model: str) -> None:
    chain = answer(model, "draft=tinyllama-1.1b,tokens=6,acceptance=0.75", input_len=5000)
    never = answer(model, "fallback,draft=tinyllama-1.1b,fallback=0,rollback=0.25,tokens=6", input_len=5000)
    assert never.tpot_s == chain.tpot_s and never.ttft_s == chain.ttft_s


def test_a_never_confident_draft_adds_one_pass_to_plain_decoding() -> None:
    never = answer("llama-2-7b", "fallback,draft=tinyllama-1.1b,fallback=1")
    single, draft = answer("llama-2-7b"), answer("tinyllama-1.1b")
    assert never.tpot_s[0] == pytest.approx(single.tpot_s[0] + draft.tpot_s[0])
    assert never.system.generation.tokens == never.system.generation.shape.new_tokens == 1.0


@given(RATES, RATES, RATES)
def test_fewer_rollbacks_yield_more_tokens(fallback: float, one: float, other: float) -> None:
    many, few = (
        fallback_rounds(draft=SMALL.model, fallback=fallback, rollback=rate).tokens
        for rate in (min(one, other), max(one, other))
    )
    assert 1.0 <= few <= many + 1e-12


INVALID = {
    "tree,widths=1/1": "draft is missing; write --speculative tree,draft=...",
    "tree,draft=tinyllama-1.1b": "give widths=1/1/3/1 by level, or budget=16",
    "tree,draft=tinyllama-1.1b,widths=2,budget=4": "give widths=1/1/3/1 by level, or budget=16",
    "tree,draft=tinyllama-1.1b,widths=2/x": "widths is '2/x'; allowed: whole numbers from 1",
    "tree,draft=tinyllama-1.1b,widths=9/9/9/9": "with at most 4,096 nodes in total",
    "tree,draft=tinyllama-1.1b,widths=2,depth=4": "widths already set the depth of the tree; remove depth",
    "tree,draft=tinyllama-1.1b,widths=2,acceptance=0.5,ranks=0.6/0.1": "not both",
    "tree,draft=tinyllama-1.1b,widths=2,ranks=0.1/0.6": "must fall",
    "tree,draft=tinyllama-1.1b+opt-125m,widths=2,acceptance=0.5+0.4+0.3": "given for 3 draft models, but there are 2",
    "tree,draft=tinyllama-1.1b,budget=5000": "budget is '5000'; allowed: a whole number from 0 to 4,096",
    "fallback,draft=tinyllama-1.1b": "fallback is missing",
    "fallback,draft=tinyllama-1.1b,fallback=2": "allowed: a number from 0 to 1",
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_options_are_a_one_line_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert INVALID[text] in refusal(["analyze", "llama-2-7b", "--hardware", "h100", "--speculative", text], capsys)
