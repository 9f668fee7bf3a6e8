"""Terms as explained numbers: a formula of named terms, and these below it, each opened where it first appears."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.core.terms import Term, raw
from llmviewer.result.explanation.node import Node
from llmviewer.result.explanation.units import unit_of

#: Function -> its sign, and how tightly it binds.
SIGNS: Mapping[Callable[..., Any], tuple[str, int]] = {
    operator.add: ("+", 1),
    operator.sub: ("-", 1),
    operator.mul: ("*", 2),
    operator.truediv: ("/", 2),
    operator.pow: ("**", 3),
}
#: Function -> its name in formulas (node.FUNCTIONS).
NAMES: Mapping[Callable[..., Any], str] = {
    np.maximum: "max", np.minimum: "min", np.ceil: "ceil", np.floor: "floor", np.round: "round", np.sqrt: "sqrt",
    np.log2: "log2", np.hypot: "hypot", np.remainder: "mod", operator.mod: "mod",
}  # fmt: skip
#: What binds tighter than every sign.
ATOM = 9


class Formulas:
    """Formulas of the terms of one operator: a name stands for one term, which is opened once."""

    def __init__(self) -> None:
        self.names: dict[object, str] = {}
        self.kept: list[Term] = []  # their ids stay theirs
        self.counted: Counter[str] = Counter()
        self.opened: set[object] = set()

    def node(self, term: Term, name: str = "") -> Node:
        """A term as a number with its formula and the terms in it."""
        shown, value = name or self._name(term), float(raw(term))
        if isinstance(term.about, Node):
            return replace(term.about, name=shown)
        if not _has_formula(term):
            source = term.source or term.place or "plain number of the formula"
            return Node(name=shown, value=value, unit=term.unit or unit_of(term), source=source)
        seen: dict[object, Term] = {}
        text = self._text(term, _inlined(term), seen)
        new = [one for key, one in seen.items() if key not in self.opened and _is_opened(one)]
        self.opened.update(map(_key, new))
        values = {self._name(one): float(raw(one)) for one in seen.values() if all(one is not other for other in new)}
        return Node(
            name=shown,
            value=value,
            unit=unit_of(term),
            formula=text,
            values=values,
            source=term.place,
            children=tuple(self.node(one) for one in new),
        )

    def _name(self, term: Term) -> str:
        """The name of a term, with a number if others have it."""
        key = _key(term)
        if key not in self.names:
            word = term.name.strip("_") or "term"
            self.counted[word] += 1
            self.names[key] = word if self.counted[word] == 1 else f"{word}_{self.counted[word]}"
            self.kept.append(term)
        return self.names[key]

    def _text(self, term: Term, inlined: set[int], seen: dict[object, Term]) -> str:
        """The expression of a term, with those of `inlined` terms; `seen` takes the terms that it names."""
        sign, binds = SIGNS.get(term.function, ("", ATOM))  # type: ignore[arg-type]
        if sign:
            parts = [self._operand(one, inlined, seen) for one in term.operands]
            left, right = (
                text if tight > binds or (tight == binds and side == (sign == "**")) else f"({text})"
                for side, (text, tight) in enumerate(parts)
            )
            return f"{left} {sign} {right}"
        if term.function is operator.neg:
            return f"0 - {self._operand(term.operands[0], inlined, seen)[0]}"
        return f"{NAMES[term.function]}({', '.join(self._arguments(term, inlined, seen))})"  # type: ignore[index]

    def _arguments(self, term: Term, inlined: set[int], seen: dict[object, Term]) -> Iterator[str]:
        """Expressions of a function's operands; a maximum of maxima is one."""
        for one in term.operands:
            nested = type(one) is Term and id(one) in inlined and one.function is term.function
            if nested and term.function in (np.maximum, np.minimum):
                yield from self._arguments(one, inlined, seen)
            else:
                yield self._operand(one, inlined, seen)[0]

    def _operand(self, operand: Any, inlined: set[int], seen: dict[object, Term]) -> tuple[str, int]:
        """The expression of an operand, and how tightly it binds."""
        if type(operand) is not Term or operand.is_flag:
            return _number(raw(operand)), ATOM
        if not _has_formula(operand) or id(operand) not in inlined:
            seen[_key(operand)] = operand
            return self._name(operand), ATOM
        return self._text(operand, inlined, seen), SIGNS.get(operand.function, ("", ATOM))[1]  # type: ignore[arg-type]


def _inlined(root: Term) -> set[int]:
    """Terms below one whose expressions stand in its formula: those without a name, and once, those of its own name."""
    counted: Counter[int] = Counter()
    own: set[int] = set()

    def visit(term: Term) -> None:
        for one in term.operands:
            if type(one) is Term and _has_formula(one) and one.name in ("", root.name):
                counted[id(one)] += 1
                own.update([id(one)] if one.name else [])
                visit(one)

    visit(root)
    return {key for key, count in counted.items() if count == 1 or key not in own}


def _is_opened(term: Term) -> bool:
    """Whether it is a number of its own; others stand in a formula as plain numbers (the tiles that lost)."""
    return bool(_has_formula(term) or term.source or term.place)


def _has_formula(term: Term) -> bool:
    return term.function in SIGNS or term.function in NAMES or term.function is operator.neg


def _number(value: Any) -> str:
    """A plain number as it stands in a formula."""
    number = float(value)
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e6 else repr(number)


def _key(term: Term) -> object:
    """Returns what a name stands for: a term, or a plain number that the code reads several times."""
    return id(term) if _has_formula(term) or not term.source else (term.name, float(raw(term)), term.source)
