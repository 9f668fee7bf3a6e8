"""Formulas as text: numbers, names, + - * / **, and calls of known functions; of numbers, or of arrays over points."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluated(
    formula: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Any:
    """The value of a formula.  names: the values of its names.  Raises ValueError for what is no formula."""
    return _value(parsed(formula), names, functions)


@cache
def parsed(formula: str) -> ast.expr:
    """The tree of a formula."""
    return ast.parse(formula, mode="eval").body


def names_in(formula: str) -> tuple[str, ...]:
    """The names of a formula whose values it needs, each once, in their order."""
    return tuple(dict.fromkeys(one.id for one in ast.walk(parsed(formula)) if isinstance(one, ast.Name)))


def _value(tree: ast.expr, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return float(tree.value)
    if isinstance(tree, ast.Name):
        return names[tree.id]
    if isinstance(tree, ast.BinOp):
        left, right = (_value(side, names, functions) for side in (tree.left, tree.right))
        return OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return functions[tree.func.id](*(_value(one, names, functions) for one in tree.args))
    raise ValueError(f"no formula: {ast.dump(tree)}")
