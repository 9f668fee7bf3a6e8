"""A number with the formula that gives it, its values, unit and source, and the numbers it is made of."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.core.terms import Term, raw
from llmviewer.language import quantity

SCHEMA = "llmviewer.explanation/1"
#: Largest relative difference between a number and its formula: sums may run in another order.
TOLERANCE = 1e-9
#: Name of a node that stands for several small ones.
OTHERS = "others"


class Later(Sequence["Node"]):
    """Children of a node that are made when they are first read, as most readers see a few of them."""

    def __init__(self, make: Callable[[], Sequence[Node]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Sequence[Node]:
        return self._make()

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, at: Any) -> Any:
        return self._made[at]


@frozen
class Node:
    """One explained number.

    unit: SI unit, "" for a count.  formula: an expression of values, of children by name, and of `sum(children)`; ""
    for a leaf.  source: where the value is from, or what the formula is; every leaf has one.  asked: the name by which
    `explained` gives the part of this number that is costly to open.
    """

    name: str
    value: float
    unit: str = ""
    formula: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    children: Sequence[Node] = ()
    asked: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, without the schema."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "formula": self.formula,
            "values": dict(self.values),
            "source": self.source,
            "children": [child.to_dict() for child in self.children],
        }

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def evaluated(node: Node) -> float:
    """The value of a node by its formula, with its children evaluated in the same way; of a leaf its own value."""
    if not node.formula:
        return node.value
    below = [(child.name, evaluated(child)) for child in node.children]
    names = {**node.values, **dict(below), "children": [value for _, value in below]}
    return float(quantity.evaluated_formula(node.formula, names, FUNCTIONS))


def of_formula(
    name: str,
    text: str,
    children: Sequence[Node],
    source: str,
    values: Mapping[str, float] = MappingProxyType({}),
    unit: str = "s",
) -> Node:
    """A number by its formula of values and of the children, which are taken as they are.  text: of the formula."""
    names = {**values, **{child.name: child.value for child in children}}
    value = float(
        quantity.evaluated_formula(text, {**names, "children": [child.value for child in children]}, FUNCTIONS)
    )
    return Node(name=name, value=value, unit=unit, formula=text, values=values, source=source, children=children)


def sum_of(name: str, children: Sequence[Node], source: str, unit: str = "s") -> Node:
    """The sum of numbers of one unit."""
    return of_formula(name, "sum(children)", children, source, unit=unit)


def sum_with_rest(
    name: str, value: float, children: Sequence[Node], source: str, rest: tuple[str, str], unit: str = "s"
) -> Node:
    """A number as the sum of its parts, and of a rest if they leave more than rounding.  rest: its name and source."""
    left = value - sum(child.value for child in children)
    if abs(left) > TOLERANCE * abs(value):
        children = (*children, Node(name=rest[0], value=left, unit=unit, source=rest[1]))
    return Node(name=name, value=value, unit=unit, formula="sum(children)", source=source, children=children)


def unasked(node: Node) -> Node:
    """The tree without names by which its parts are asked, which are those of another model."""
    if isinstance(node.children, Later):
        return replace(node, asked="")
    return replace(node, asked="", children=tuple(map(unasked, node.children)))


def folded(node: Node, most: int, depth: int, *, closed: bool = False) -> Node:
    """The tree cut at a depth, with at most this many children of a sum; the smallest are one child with their sum.

    closed: children that are made when they are first read are left out.
    """
    if depth <= 0 or (closed and isinstance(node.children, Later)):
        return replace(node, children=())
    children = sorted(node.children, key=lambda child: -abs(child.value)) if is_sum(node) else list(node.children)
    largest = children[:most] if is_sum(node) else children
    kept = [folded(child, most, depth - 1, closed=closed) for child in largest]
    rest = children[most:] if is_sum(node) else []
    if rest:
        kept.append(
            Node(
                name=f"{len(rest)} {OTHERS}",
                value=math.fsum(child.value for child in rest),
                unit=node.unit,
                source=", ".join(child.name for child in rest),
            )
        )
    return replace(node, children=tuple(kept))


def is_sum(node: Node) -> bool:
    """Whether the value is the sum of the children."""
    return node.formula == "sum(children)"


def smooth_max(*values: float) -> float:
    """(Σ t^p)^(1/p) of all but the last value, which is p: the smooth maximum of times (`timing/roofline.py`)."""
    *times, sharpness = values
    largest = max(times)
    if largest <= 0.0:
        return 0.0
    return float(largest * math.fsum((time / largest) ** sharpness for time in times) ** (1.0 / sharpness))


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "sum": math.fsum,
    "max": max, "min": min, "smooth_max": smooth_max, "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt,
    "log2": math.log2, "hypot": math.hypot, "mod": math.fmod,
    "round": lambda value, digits=0.0: round(value, int(digits)),
}  # fmt: skip


class Measure(NamedTuple):
    """The word that is counted (byte, FLOP or none), the exponent of seconds, and the factor to SI units."""

    counted: str
    seconds: float
    factor: float


NONE = Measure("", 0.0, 1.0)
MIXED = "?"
#: Unit -> its measure; others count nothing.
MEASURES = {
    "s": Measure("", 1.0, 1.0), "us": Measure("", 1.0, 1e-6), "ns": Measure("", 1.0, 1e-9),
    "Hz": Measure("", -1.0, 1.0), "kcycle": Measure("", 0.0, 1e3),
    "byte": Measure("byte", 0.0, 1.0), "MiB": Measure("byte", 0.0, 2.0**20),
    "byte/s": Measure("byte", -1.0, 1.0), "byte/cycle": Measure("byte", 0.0, 1.0),
    "s/byte": Measure("", 1.0, 1.0),
    "FLOP": Measure("FLOP", 0.0, 1.0), "FLOP/s": Measure("FLOP", -1.0, 1.0), "FLOP/byte": NONE,
    "W": Measure("W", 0.0, 1.0), "op": Measure("op", 0.0, 1.0), "op/s": Measure("op", -1.0, 1.0),
}  # fmt: skip
#: Plain numbers that convert units.
CONVERSIONS = (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1e12, 2.0**20)
SAME_UNIT = (np.maximum, np.minimum, np.hypot, operator.add, operator.sub, operator.neg)


#: Ending of a name -> unit, where a formula counts without one.
ENDINGS = {
    "byte_s": "s/byte", "flops_per_s": "FLOP/s", "bytes_per_s": "byte/s", "_s": "s", "seconds": "s", "_us": "us",
    "_ns": "ns", "_hz": "Hz", "per_clock": "byte",
}  # fmt: skip


def unit_of(term: Term) -> str:
    """The unit of a term, by its name or by its formula; "" for a count and what is of no kind that has a word."""
    named = _by_ending(term.name)
    if named:
        return named
    found = measure(term)
    if found.seconds == 0.0:
        return found.counted if found.counted != MIXED and found.factor == 1.0 else ""
    if abs(found.seconds - 1.0) < 1e-9 and not found.counted:
        return next((unit for unit in ("s", "us", "ns") if abs(found.factor / MEASURES[unit].factor - 1.0) < 1e-9), "")
    rate = found.counted not in ("", MIXED) and found.factor == 1.0 and found.seconds == -1.0
    return f"{found.counted}/s" if rate else ""


def measure(operand: Any) -> Measure:
    """The measure of a term; a plain number that converts units changes only the factor."""
    if type(operand) is not Term:
        return Measure("", 0.0, 1.0 / operand) if operand in CONVERSIONS else NONE
    unit = operand.unit or _by_ending(operand.name)
    if operand.function is None or unit:
        return MEASURES.get(unit, NONE)
    return _of_formula(operand, [measure(one) for one in operand.operands])


def _of_formula(term: Term, below: list[Measure]) -> Measure:
    """The measure of a formula, by those of its operands."""
    first = below[0]
    if term.function is operator.mul:
        return _times(*below)
    if term.function is operator.truediv:
        return _times(first, Measure(f"/{below[1].counted}", -below[1].seconds, 1.0 / below[1].factor))
    if term.function is operator.pow:
        power = float(raw(term.operands[1]))
        return Measure(first.counted and MIXED, first.seconds * power, first.factor**power)
    if term.function not in SAME_UNIT:
        return NONE
    found = {Measure(one.counted, round(one.seconds, 9), round(one.factor, 15)) for one in below}
    if term.function in (np.maximum, np.minimum) and len(found) > 1:  # a limit that is a plain number
        found.discard(NONE)
    return found.pop() if len(found) == 1 else Measure(MIXED, 0.0, 1.0)


@cache
def _by_ending(name: str) -> str:
    """The unit that a name ends with."""
    return next((unit for ending, unit in ENDINGS.items() if name.endswith(ending)), "")


def _times(a: Measure, b: Measure) -> Measure:
    """The measure of a product; what is counted per something of no unit has none."""
    words = {a.counted.strip("/"), b.counted.strip("/")} - {""}
    opposite = a.counted and b.counted == f"/{a.counted}"
    counted = "" if opposite or not words else MIXED if len(words) > 1 else words.pop()
    per = b.counted.startswith("/") and b.counted != "/"
    return Measure("" if per and not a.counted else counted, a.seconds + b.seconds, a.factor * b.factor)


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
