"""Terms: numbers that keep their formula, its names, and what is left out of it."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from llmviewer.core.terms import Term, leaf, projected
from llmviewer.result.explanation.node import Formulas, Node, evaluated, unit_of
from llmviewer.timing.kernels import tiles


def _leaf(name: str, value: float, unit: str = "") -> Term:
    return leaf(name, value, unit, "a test")


def _opened(term: object) -> Node:
    assert isinstance(term, Term)
    return Formulas().node(term, "root")


A, B, ZERO = _leaf("a", 6.0), _leaf("b", 4.0), _leaf("zero", 0.0)


@pytest.mark.parametrize(
    ("term", "formula", "value"),
    [
        (A * B + 1.0, "a * b + 1", 25.0),
        (A - (B - 1.0), "a - (b - 1)", 3.0),
        (A / (B / 2.0), "a / (b / 2)", 3.0),
        ((A + B) ** 2.0, "(a + b) ** 2", 100.0),
        (2.0 ** (A - B), "2 ** (a - b)", 4.0),
        (np.maximum(np.maximum(A, B), A + B), "max(a, b, a + b)", 10.0),
        (np.ceil(A / B) + np.hypot(A, B) * 0.0, "ceil(a / b)", 2.0),
        (np.clip(A / B, 0.0, 1.0), "min(a / b, 1)", 1.0),
        (-A + B, "0 - a + b", -2.0),
        (np.round(A / B, 1), "round(a / b, 1)", 1.5),
    ],
)
def test_formulas_have_their_value(term: object, formula: str, value: float) -> None:
    node = _opened(term)
    assert node.formula == formula
    assert evaluated(node) == node.value == value


@pytest.mark.parametrize(
    ("term", "left"),
    [
        (A + ZERO * B, A),
        (A * (B > 3.0), A),
        (A * 1.0, A),
        (np.maximum(A, 1.0), A),
        (np.maximum(A, _leaf("least", 1e-30)), A),  # a guard against a division by 0
        (np.where(A > B, A, B), A),
        (B + (A > B) * (A - B), A),
        (A / (A / B), B),
    ],
)
def test_what_changes_nothing_is_left_out(term: object, left: Term) -> None:
    assert term is left


def test_a_fitted_one_stays() -> None:
    """A factor that a fit gave is a number of the formula, whatever its value."""
    assert _opened(A * _leaf("lone", 1.0)).formula == "a * lone"


def test_the_code_names_its_terms() -> None:
    """Variables and fields of `tiles.grid`: 2 · 64 rows · 64 columns of the second tile over 1 TFLOP/s."""
    speed = tiles.TileSpeed(
        units=_leaf("units", 100.0), flops_per_s=_leaf("peak", 1e12, "FLOP/s"), operand_bytes=2.0, prologue_s=1e-9,
        feed_bytes_per_s=_leaf("feed", 1e12, "byte/s"), ragged=0.5,
    )  # fmt: skip  # type: ignore[arg-type]
    found = tiles.grid(_leaf("n", 128.0), _leaf("k", 128.0), speed)  # type: ignore[arg-type]
    depth_s = projected(found.depth_s, 1)
    names = {node.name for node in _opened(depth_s).walk()}
    assert {"computing", "feeding", "peak", "feed", "depth", "units", "step"} <= names
    assert depth_s.value == 2.0 * 64.0 * 64.0 / 1e12 * 100.0 * 128.0


def test_the_winner_of_several_tiles_is_opened() -> None:
    row = leaf("times", np.array([[3.0], [2.0], [5.0], [4.0]]), "s", "a test")
    node = _opened(tiles.fastest(row * A))  # type: ignore[arg-type,operator]
    assert node.value == evaluated(node) == 12.0
    assert sorted(node.values.values()) == [18.0, 24.0, 30.0]


@pytest.mark.parametrize(
    ("term", "unit"),
    [
        (_leaf("floor", 5.0, "us") * 1e-6, "s"),
        (_leaf("floor", 5.0, "kcycle") * (1e3 / _leaf("clock", 2e9, "Hz")), "s"),
        (_leaf("x", 5.0, "byte") / _leaf("y", 2.0, "byte/s"), "s"),
        (_leaf("x", 5.0, "byte/s") * _leaf("y", 2.0), "byte/s"),
        ((_leaf("x", 5.0, "s") ** 3.0 + _leaf("y", 2.0, "s") ** 3.0) ** (1.0 / 3.0), "s"),
        (_leaf("x", 5.0, "W") / _leaf("y", 2.0, "FLOP/s"), ""),
        (1.0 - _leaf("x", 5.0, "byte") / _leaf("y", 7.0, "byte"), ""),
    ],
)
def test_units_follow_the_formula(term: object, unit: str) -> None:
    assert isinstance(term, Term)
    assert unit_of(term) == unit


def test_comparisons_are_read_as_truths() -> None:
    assert operator.gt(A, B) and not A <= B and bool(A == 6.0)
    assert float(A) == 6.0
