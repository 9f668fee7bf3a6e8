"""Trees of draft tokens: pairs and expected tokens by hand, and optimality of the best tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.techniques.speculation import heads, trees
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks
from llmviewer.techniques.speculation.acceptance_presets import RANKS
from llmviewer.techniques.speculation.trees import MergedTrees, Tree

#: Medusa's tree of 63 draft tokens, https://github.com/FasterDecoding/Medusa (medusa/model/medusa_choices.py).
MEDUSA_63 = [
    *([0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2], [3], [0, 3], [4], [0, 4], [2, 0], [0, 5], [0, 0, 1]),
    *([5], [0, 6], [6], [0, 7], [0, 1, 0], [1, 1], [7], [0, 8], [0, 0, 2], [3, 0], [0, 9], [8], [9], [1, 0, 0]),
    *([0, 2, 0], [1, 2], [0, 0, 3], [4, 0], [2, 1], [0, 0, 4], [0, 0, 5], [0, 0, 0, 0], [0, 1, 1], [0, 0, 6]),
    *([0, 3, 0], [5, 0], [1, 3], [0, 0, 7], [0, 0, 8], [0, 0, 9], [6, 0], [0, 4, 0], [1, 4], [7, 0], [0, 1, 2]),
    *([2, 0, 0], [3, 1], [2, 2], [8, 0], [0, 5, 0], [1, 5], [1, 0, 1], [0, 2, 1], [9, 0], [0, 6, 0], [0, 0, 0, 1]),
    *([1, 6], [0, 7, 0]),
]


def row(weights: list[float]) -> tuple[float, ...]:
    """Decreasing rates that sum to less than 1."""
    return tuple(sorted((weight / (sum(weights) + 0.3) for weight in weights), reverse=True))


rows = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4).map(row)
some_ranks = st.lists(rows, min_size=1, max_size=3).map(lambda table: Ranks(rates=tuple(table)))
HALF_AND_QUARTER = Ranks(rates=((0.5, 0.25),))


def of_paths(paths: Sequence[Sequence[int]]) -> Tree:
    """The tree of paths of ranks counted from 0, as Medusa's code lists them: [[0], [0, 0], [1], ...]."""
    ordered = sorted(map(tuple, paths), key=lambda path: (len(path), path))
    number = {(): 0} | {path: at for at, path in enumerate(ordered, 1)}
    return tuple(number[path[:-1]] for path in ordered)


def widths(tree: Tree) -> tuple[int, ...]:
    """Nodes at each depth from 1."""
    deep = trees.depths(tree)
    return tuple(deep.count(depth) for depth in range(1, max(deep, default=0) + 1))


def one_choice(acceptance: Acceptance) -> Ranks:
    """A draft with a single choice."""
    return Ranks(rates=tuple((rate,) for rate in acceptance.rates))


def all_trees(nodes: int, depth: int) -> list[Tree]:
    """Every list of parents that forms a tree; many occur more than once."""
    found = product(*(range(number) for number in range(1, nodes + 1)))
    return [tree for tree in found if max(trees.depths(tree), default=0) <= depth]


def test_a_tree_of_two_by_two_has_17_pairs_and_yields_2_3125_tokens() -> None:
    """Root 1, two children 2 each, four grandchildren 3 each: 1 + 4 + 12 = 17.  1 + 0.75 + 0.75^2 = 2.3125."""
    tree = trees.full((2, 2))
    assert tree == (0, 0, 1, 1, 2, 2)
    assert trees.pairs(tree) == 17.0
    assert trees.expected(tree, HALF_AND_QUARTER) == pytest.approx(2.3125, rel=1e-14)
    assert trees.depth_probabilities(tree, HALF_AND_QUARTER) == (1.0, 0.75, 0.5625)


def test_specinfers_expansion_2_2_1_has_ten_nodes_and_four_sequences() -> None:
    """arXiv 2305.09781, figure 3: <2, 2, 1> gives four token sequences."""
    tree = trees.full((2, 2, 1))
    assert widths(tree) == (2, 4, 4)
    assert trees.pairs(tree) == 1 + 2 * 2 + 4 * 3 + 4 * 4


@given(drafted=st.integers(0, 30))
def test_a_tree_of_width_1_equals_the_causal_chain(drafted: int) -> None:
    new_tokens = drafted + 1
    assert trees.full((1,) * drafted) == trees.chain(drafted)
    assert trees.pairs(trees.chain(drafted)) == new_tokens * (new_tokens + 1) / 2


@given(drafted=st.integers(0, 30), curve=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_a_chain_yields_the_expected_tokens_of_its_acceptance(drafted: int, curve: list[float]) -> None:
    acceptance = Acceptance(rates=tuple(curve))
    assert trees.expected(trees.chain(drafted), one_choice(acceptance)) == acceptance.tokens(float(drafted))


@given(rates=some_ranks, budget=st.integers(0, 5), depth=st.integers(1, 4))
def test_no_tree_of_the_same_size_yields_more_than_the_best(rates: Ranks, budget: int, depth: int) -> None:
    best = trees.best(budget, rates, depth)
    most = max(trees.expected(tree, rates) for tree in all_trees(budget, depth))
    assert trees.expected(best, rates) == pytest.approx(most, rel=1e-12)
    assert len(best) <= budget
    assert max(trees.depths(best), default=0) <= depth


@given(rates=some_ranks, budget=st.integers(1, 40))
def test_the_best_tree_never_yields_less_than_a_chain(rates: Ranks, budget: int) -> None:
    best = trees.expected(trees.best(budget, rates, budget), rates)
    assert best >= trees.expected(trees.chain(budget), rates) * (1 - 1e-12)


@given(rates=some_ranks, budget=st.integers(1, 30))
def test_a_larger_budget_never_yields_less(rates: Ranks, budget: int) -> None:
    larger, smaller = (trees.expected(trees.best(size, rates, 6), rates) for size in (budget + 1, budget))
    assert larger >= smaller * (1 - 1e-12)


def test_the_best_tree_of_three_takes_the_largest_products() -> None:
    """0.5, 0.25 (the second choice) and 0.5 x 0.5 beat 0.5 x 0.25 = 0.125."""
    assert trees.expected(trees.best(3, HALF_AND_QUARTER, 5), HALF_AND_QUARTER) == 2.0


def test_the_best_tree_of_a_draft_with_one_choice_is_a_chain() -> None:
    assert trees.best(6, one_choice(Acceptance(rates=(0.7,))), 4) == trees.chain(4)


def test_paths_of_ranks_become_a_tree_whatever_their_order() -> None:
    assert of_paths([[0, 0], [1], [0]]) == (0, 0, 1)
    assert of_paths([[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]) == trees.full((2, 2))


def test_medusas_tree_and_head_accuracy_reproduce_spec_bench() -> None:
    """Spec-Bench: 2.32 tokens per pass for Vicuna-7B, 2.39 for 13B; the log has the first five choices of ten."""
    tree = of_paths(MEDUSA_63)
    assert len(tree) == 63
    assert widths(tree) == heads.LEVELS == (10, 28, 23, 2)
    assert trees.expected(tree, RANKS["medusa-vicuna-7b"].ranks) == pytest.approx(2.32, rel=0.03)
    assert trees.expected(tree, RANKS["medusa-vicuna-13b"].ranks) == pytest.approx(2.39, rel=0.03)


@pytest.mark.parametrize(("width", "measured"), [(1, 2.95), (2, 3.07), (3, 3.21), (4, 3.33), (5, 3.43)])
def test_specinfers_trees_and_success_rates_reproduce_its_measurements(width: int, measured: float) -> None:
    """arXiv 2305.09781, tables 1 and 2: LLaMA-68M for LLaMA-7B, Alpaca, greedy, <1, 1, k, 1, 1, 1, 1, 1>."""
    tree = trees.full((1, 1, width, 1, 1, 1, 1, 1))
    assert trees.expected(tree, RANKS["draft-llama-68m"].ranks) == pytest.approx(measured, rel=0.09)


def test_tokens_of_two_independent_drafts_add_up() -> None:
    """Chains of 2 with 0.5 and 0.4: 1 + (1 - 0.5 x 0.6) + (1 - 0.75 x 0.84) = 2.07; 5 tokens, 1 + 2 (2 + 3) pairs."""
    both = MergedTrees(trees=(trees.chain(2), trees.chain(2)))
    rates = [Ranks(rates=((0.5,),)), Ranks(rates=((0.4,),))]
    assert both.expected(rates) == pytest.approx(2.07, rel=1e-14)
    assert both.new_tokens == 5.0
    assert both.pairs == 11.0


def test_identical_drafts_are_one_tree() -> None:
    tree, rates = trees.full((2, 2)), HALF_AND_QUARTER
    same = MergedTrees(trees=(tree, tree, tree), overlap=1.0)
    assert same.new_tokens == len(tree) + 1
    assert same.pairs == trees.pairs(tree)
    assert same.expected([rates] * 3) == trees.expected(tree, rates)


@given(rates=some_ranks, budget=st.integers(1, 8), overlap=st.floats(0.0, 1.0))
def test_a_second_draft_adds_between_nothing_and_its_own_tokens(rates: Ranks, budget: int, overlap: float) -> None:
    tree = trees.best(budget, rates, 4)
    single = trees.expected(tree, rates)
    both = MergedTrees(trees=(tree, tree), overlap=overlap).expected([rates, rates])
    assert single * (1 - 1e-12) <= both <= (1.0 + 2.0 * (single - 1.0)) * (1 + 1e-12)
