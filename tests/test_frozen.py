"""A frozen class does what `dataclasses.dataclass(frozen=True, slots=True, kw_only=True)` makes it do."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from llmviewer.core.frozen import frozen

Decorator = Callable[[type[Any]], type[Any]]


def pair(decorate: Decorator) -> tuple[type[Any], type[Any]]:
    """A class and one that derives from it, with every kind of field."""

    class Point:
        """A point of a plane."""

        unit: ClassVar[str] = "m"
        x: float
        y: float = 2.0
        tags: list[str] = field(default_factory=list)
        hidden: int = field(default=7, repr=False, compare=False)
        made: int = field(default=3, init=False)

        @property
        def area(self) -> float:
            return self.x * self.y

    point = decorate(Point)

    class Named(point):
        name: str = ""
        made_twice: list[int] = field(default_factory=lambda: [1], init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    return point, decorate(Named)


OURS = pair(frozen)
THEIRS = pair(dataclass(frozen=True, slots=True, kw_only=True))


def both(index: int, **values: Any) -> tuple[Any, Any]:
    return OURS[index](**values), THEIRS[index](**values)


@frozen
class Leaf:
    """A class that pickle finds by its name."""

    value: int
    inner: tuple[int, ...] = ()


@frozen(slots=False, eq=False)
class Kept:
    """A class with room for other attributes."""

    value: int


@frozen(kw_only=False)
class Ordered:
    """A class whose values are given by place."""

    first: int
    second: int = 2


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("values", [{"x": 1.0}, {"x": 2.0, "y": 3.0, "tags": ["a"], "hidden": 1}])
def test_values_texts_and_signatures_are_those_of_a_dataclass(index: int, values: dict[str, Any]) -> None:
    ours, theirs = both(index, **values)
    assert repr(ours) == repr(theirs)
    assert asdict(ours) == asdict(theirs)
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert asdict(replace(ours, y=9.0)) == asdict(replace(theirs, y=9.0))
    assert str(inspect.signature(OURS[index])) == str(inspect.signature(THEIRS[index]))
    assert ours.area == theirs.area
    assert OURS[index].__slots__ == THEIRS[index].__slots__


def test_defaults_that_are_made_are_made_for_each_object() -> None:
    first, second = OURS[1](x=1.0), OURS[1](x=1.0)
    assert first.tags == second.tags == []
    assert first.tags is not second.tags
    assert first.made_twice is not second.made_twice


@pytest.mark.parametrize(
    "values", [{}, {"x": 1.0, "z": 2.0}, {"x": 1.0, "made": 4}], ids=["missing", "unknown", "not given"]
)
def test_wrong_arguments_are_errors_in_the_same_words(values: dict[str, Any]) -> None:
    told = []
    for cls in (OURS[0], THEIRS[0]):
        with pytest.raises(TypeError) as error:
            cls(**values)
        told.append(str(error.value))
    assert told[0] == told[1]
    with pytest.raises(TypeError):
        OURS[0](1.0)


def test_the_checks_of_a_class_run() -> None:
    with pytest.raises(ValueError, match="x"):
        OURS[1](x=-1.0)


@pytest.mark.parametrize("name", ["x", "area", "unknown"])
def test_no_attribute_is_set_or_deleted(name: str) -> None:
    one = OURS[0](x=1.0)
    with pytest.raises(FrozenInstanceError):
        setattr(one, name, 2.0)
    with pytest.raises(FrozenInstanceError):
        delattr(one, name)


def test_equal_values_of_one_class_are_equal_and_have_one_hash() -> None:
    assert Leaf(value=1) == Leaf(value=1) != Leaf(value=2)
    assert len({Leaf(value=1), Leaf(value=1), Leaf(value=2)}) == 2
    assert OURS[0](x=1.0, hidden=1) == OURS[0](x=1.0, hidden=2)
    assert OURS[0](x=1.0) != OURS[1](x=1.0)
    assert Leaf(value=1) != 1
    assert Kept(value=1) != Kept(value=1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS[0](x=1.0))


def test_objects_are_copied_and_pickled() -> None:
    one = Leaf(value=1, inner=(2, 3))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
    kept = pickle.loads(pickle.dumps(Kept(value=4)))
    assert kept.value == 4


def test_values_are_given_by_place_where_the_class_says_so() -> None:
    assert Ordered(1) == Ordered(first=1, second=2) == Ordered(1, 2)
    assert [*inspect.signature(Ordered).parameters] == ["first", "second"]
    assert Ordered.__match_args__ == ("first", "second")
