"""Frozen dataclasses whose methods are compiled when they are first called.

`dataclasses.dataclass` compiles six methods of a class at import, which takes half a millisecond.  A command imports
some 180 classes, makes objects of half of them and compares few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import Signature, signature
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

Class = TypeVar("Class")
Method = Callable[..., Any]


@overload
def frozen(cls: type[Class], /) -> type[Class]: ...
@overload
def frozen(
    *, kw_only: bool = True, eq: bool = True, repr: bool = True, slots: bool = True
) -> Callable[[type[Class]], type[Class]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(
    cls: Any = None,
    /,
    *,
    kw_only: bool = True,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 (as of `dataclass`)
    slots: bool = True,
) -> Any:
    """A class as `dataclass(frozen=True, slots=True, kw_only=True)` makes it; its fields are those of `dataclasses`."""

    def build(cls: type[Any]) -> type[Any]:
        made = dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        methods: dict[str, Any] = {"__setattr__": _refuse, "__delattr__": _refuse, "__signature__": _OfFields()}
        if slots:
            methods |= {"__getstate__": _values, "__setstate__": _set_values}
        if repr:
            methods["__repr__"] = _text
        for name, compiled in {"__init__": _init, **({"__eq__": _eq, "__hash__": _hash} if eq else {})}.items():
            methods[name] = _when_called(made, name, compiled)
        for name, method in methods.items():
            if vars(cls).get(name) is None:
                setattr(made, name, method)
        return made

    return build if cls is None else build(cls)


def _when_called(cls: type[Any], name: str, compiled: Callable[[type[Any]], Method]) -> Method:
    """A method that puts a compiled one in its place when it is first called."""

    def method(self: Any, /, *values: Any, **named: Any) -> Any:
        made = compiled(cls)
        setattr(cls, name, made)
        return made(self, *values, **named)

    return method


def _init(cls: type[Any]) -> Method:
    known: dict[str, Any] = {"set_field": object.__setattr__, "factory": FACTORY}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for one in fields(cls):
        default = one.default if one.default_factory is MISSING else one.default_factory
        if default is MISSING and not one.init:
            continue
        known[f"default_{one.name}"] = default
        body.append(f"set_field(self, {one.name!r}, {_given(one)})")
        if one.init:
            text = one.name + ("" if default is MISSING else f"={_default(one)}")
            (by_name if one.kw_only else by_place).append(text)
    body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    made = _function(cls, "__init__", [*by_place, *(["*"] if by_name else []), *by_name], body or ["pass"], known)
    made.__annotations__ = {one.name: one.type for one in fields(cls) if one.init} | {"return": None}
    return made


def _default(one: Field[Any]) -> str:
    return f"default_{one.name}" if one.default_factory is MISSING else "factory"


def _given(one: Field[Any]) -> str:
    """The value of a field in the text of `__init__`."""
    if one.default_factory is MISSING:
        return one.name if one.init else _default(one)
    new = f"default_{one.name}()"
    return f"{new} if {one.name} is factory else {one.name}" if one.init else new


def _eq(cls: type[Any]) -> Method:
    equal = f"{_compared(cls, 'self')} == {_compared(cls, 'other')}"
    body = [f"return {equal} if other.__class__ is self.__class__ else NotImplemented"]
    return _function(cls, "__eq__", ["other"], body, {})


def _hash(cls: type[Any]) -> Method:
    return _function(cls, "__hash__", [], [f"return hash({_compared(cls, 'self')})"], {})


def _compared(cls: type[Any], of: str) -> str:
    return "(" + "".join(f"{of}.{one.name}, " for one in fields(cls) if one.compare) + ")"


def _function(cls: type[Any], name: str, parameters: list[str], body: list[str], known: dict[str, Any]) -> Method:
    exec(f"def {name}({', '.join(['self', *parameters])}):\n " + "\n ".join(body), known)
    made: Method = known[name]
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


#: Stands in a signature for a default that is made for each object.
FACTORY = _Factory()


class _OfFields:
    """`__signature__` of a class, made from its fields when it is read."""

    def __get__(self, one: object, cls: type[Any]) -> Signature:
        init = signature(_init(cls) if "__signature__" in vars(cls) else cls.__init__)
        return init.replace(parameters=[*init.parameters.values()][1:])


def _refuse(self: object, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _values(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_values(self: Any, values: list[Any]) -> None:
    for one, value in zip(fields(self), values, strict=True):
        object.__setattr__(self, one.name, value)


@recursive_repr()
def _text(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"
