"""A number with the formula that gives it, the values in the formula, their source, and the numbers it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from llmviewer.language import formula

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    return float(formula.evaluated(node.formula, names, FUNCTIONS))


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
    value = float(formula.evaluated(text, {**names, "children": [child.value for child in children]}, FUNCTIONS))
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
