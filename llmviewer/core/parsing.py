"""Text that strangers wrote -> plain values (what JSON can say).  No text can run code, exhaust the memory or the
stack, or say a field twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain, islice
from typing import Any

from llmviewer.core.errors import quoted

#: A config nests a handful of levels and holds hundreds of values; far beyond these a file is not one.
MOST_LEVELS = 100
MOST_VALUES = 10**6
#: Levels that a text may open before it is worth looking whether they stand inside each other: the C loader descends
#: on the stack of the process, which some twenty thousand exhaust.
MOST_OPENINGS = 1000
#: Not read: dates stay text, and a merge key (`<<`, dropped from YAML 1.2) is a key like others; ten lines of them
#: make billions of fields.
UNREAD = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge")
#: Numbers like 1e12: YAML 1.1 takes them for text unless they have a point and a sign.
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")


def from_json(text: str) -> Any:
    """The value that a JSON text says.  Raises ValueError: a one-line reason."""
    import json

    try:
        return _plain(json.loads(text, object_pairs_hook=_without_repeats))
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _reason(error) from error


def from_yaml(text: str) -> Any:
    """The value that a YAML text says, by the C loader where present.  Raises ValueError: a one-line reason."""
    import yaml

    try:
        if sum(map(text.count, "[{-?")) > MOST_OPENINGS:
            _check_levels(text)
        return _plain(yaml.load(text, Loader=_yaml_loader()))  # a SafeLoader
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _reason(error) from error
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(at + ", ".join(filter(None, (error.context, error.problem)))) from error
    except yaml.YAMLError as error:
        raise ValueError(str(error).split("\n")[0]) from error


def _reason(error: ValueError) -> ValueError:
    """In our words where Python's speak to a programmer."""
    return ValueError("a number has thousands of digits") if "int_max_str_digits" in str(error) else error


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {MOST_LEVELS} levels")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; which of two values of one field was meant nobody can know."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(_repeated(name for name, _ in pairs))
    return fields


def _repeated(names: Iterable[str]) -> str:
    name, times = Counter(names).most_common(1)[0]
    return f"field '{name}' stands {times} times"


def _check_levels(text: str) -> None:
    """Raise ValueError where a YAML text nests too deep.  The parser alone does not descend on the stack."""
    import yaml

    level = 0
    for event in yaml.parse(text, Loader=_yaml_loader()):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _too_deep()


@cache
def _yaml_loader() -> type[Any]:
    """A safe loader for what JSON can say, in which a key stands once."""
    import yaml

    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            names = [key.value for key, _ in node.value]
            if len(set(map(str, names))) < len(names):
                raise yaml.constructor.ConstructorError(None, None, _repeated(names), node.start_mark)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in UNREAD]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return Loader


def _plain(value: Any) -> Any:
    """`value`, if it could stand in a JSON file of reasonable size.  Aliases count as often as they are used, so one
    that contains itself never passes."""
    values, seen, level = [value], 1, 0
    while values:
        if level > MOST_LEVELS:
            raise _too_deep()
        if seen > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values")
        values = list(islice(chain.from_iterable(map(_inner, values)), MOST_VALUES))
        seen += len(values)
        level += 1
    return value


def _inner(value: Any) -> Iterable[Any]:
    """What stands inside a list or a mapping."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"key {quoted(key)} is not text; put it in quotes")
        return value.values()
    if isinstance(value, list):
        return value
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{quoted(value)} is neither text, number, list nor mapping")
    return ()
