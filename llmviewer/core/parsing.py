"""Parsing untrusted JSON and YAML text into plain values (those of JSON).

No text can run code, exhaust memory or stack, or give a field twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain, islice
from typing import Any

from llmviewer.core.errors import UserError, quoted

#: Limits of nesting and size; a config has a few levels and hundreds of values.
MAX_LEVELS = 100
MAX_VALUES = 10**6
#: A YAML text with more opening characters is checked for nesting before it is loaded: the C loader recurses on the
#: stack of the process, which about twenty thousand levels exhaust.
MAX_UNCHECKED_OPENINGS = 1000
#: YAML tags that are not resolved: dates stay text, and a merge key (`<<`, dropped from YAML 1.2) is an ordinary key,
#: because ten lines of merge keys make billions of fields.
UNRESOLVED_TAGS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge")
#: Numbers like 1e12, which YAML 1.1 reads as text unless they have a point and a sign.
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
#: Code points that stand for no character alone.
_SURROGATE = re.compile("[\ud800-\udfff]")

#: Suffix of a time on the command line -> seconds.
UNITS_OF_TIME = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def from_json(text: str, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON text.  Raises ValueError with a one-line reason."""
    import json

    try:
        return _checked(json.loads(text, object_pairs_hook=_unique_fields), max_values)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _reason(error) from error


def from_yaml(text: str) -> Any:
    """The value of a YAML text, read by the C loader if present.  Raises ValueError with a one-line reason."""
    import yaml

    with _one_line_reasons(text):
        return _checked(yaml.load(text, Loader=_yaml_loader()))  # a SafeLoader


def pairs_of_yaml(text: str) -> list[tuple[int, str, str]]:
    """Line, key and value of each one-entry mapping in a YAML list; keys and values are the text that was written.

    Raises ValueError with a one-line reason, which begins with the line.
    """
    import yaml

    with _one_line_reasons(text):
        root: Any = yaml.compose(text, Loader=_yaml_loader())
    if root is None:
        return []
    if not isinstance(root, yaml.SequenceNode):
        raise ValueError(
            f"line {root.start_mark.line + 1}: a {root.id}; expected a list, each line of which begins with -"
        )
    return [(item.start_mark.line + 1, *_pair(item)) for item in root.value]


def _pair(item: Any) -> tuple[str, str]:
    """The key and the value of a node of YAML that is a mapping of one text to another."""
    entries: Any = item.value if item.id == "mapping" else ()
    if len(entries) != 1 or any(one.id != "scalar" for one in entries[0]):
        found = f"a mapping of {len(entries)} entries" if item.id == "mapping" and len(entries) != 1 else f"a {item.id}"
        raise ValueError(f"line {item.start_mark.line + 1}: {found}; expected one entry, TEXT: TEXT")
    key, value = entries[0]
    return key.value, value.value


@contextmanager
def _one_line_reasons(text: str) -> Iterator[None]:
    """Turn errors of the YAML loader into a ValueError of one line, after a check of the nesting of its text."""
    import yaml

    try:
        if sum(map(text.count, "[{-?")) > MAX_UNCHECKED_OPENINGS:
            _check_levels(text)
        yield
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _reason(error) from error
    except yaml.MarkedYAMLError as error:
        if error.problem and "nesting depth" in error.problem:  # the own limit of newer releases of libyaml
            raise _too_deep() from error
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(at + ", ".join(filter(None, (error.context, error.problem)))) from error
    except yaml.YAMLError as error:
        raise ValueError(str(error).split("\n")[0]) from error


def _reason(error: ValueError) -> ValueError:
    """The error, with a plainer text for Python's limit on digits."""
    return ValueError("a number has thousands of digits") if "int_max_str_digits" in str(error) else error


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {MAX_LEVELS} levels")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a JSON object; a repeated field is an error because its value would be ambiguous."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(_repeated(name for name, _ in pairs))
    return fields


def _repeated(names: Iterable[str]) -> str:
    name, count = Counter(names).most_common(1)[0]
    return f"field '{name}' appears {count} times"


def _check_levels(text: str) -> None:
    """Raise ValueError if a YAML text nests too deeply; the event parser, unlike the loader, does not recurse."""
    import yaml

    level = 0
    for event in yaml.parse(text, Loader=_yaml_loader()):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MAX_LEVELS:
            raise _too_deep()


@cache
def _yaml_loader() -> type[Any]:
    """A safe YAML loader for the values of JSON that refuses repeated keys."""
    import yaml

    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            names = [key.value for key, _ in node.value]
            if len(set(map(str, names))) < len(names):
                raise yaml.constructor.ConstructorError(None, None, _repeated(names), node.start_mark)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in UNRESOLVED_TAGS]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return Loader


def _checked(value: Any, max_values: int = MAX_VALUES) -> Any:
    """`value`, if a JSON file of reasonable size could have it; else ValueError.

    An alias counts each time it is used, so one that contains itself never passes.
    """
    values, seen, level = [value], 1, 0
    while values:
        if level > MAX_LEVELS:
            raise _too_deep()
        if seen > max_values:
            raise ValueError(f"more than {max_values:,} values")
        values = list(islice(chain.from_iterable(map(_children, values)), max_values))
        seen += len(values)
        level += 1
    return value


def _children(value: Any) -> Iterable[Any]:
    """The values in a list or mapping; ValueError for a type that JSON does not have."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"key {quoted(key)} is not text; put it in quotes")
            _check_text(key)
        return value.values()
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        _check_text(value)
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{quoted(value)} is neither text, number, list nor mapping")
    return ()


def _check_text(text: str) -> None:
    """Raise ValueError for text that cannot be written as UTF-8, which JSON can spell by its escapes."""
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError(f"{quoted(text)} has one half of a surrogate pair, which no text can have")


def duration(name: str, text: str | float) -> float:
    """Seconds of `90s`, `10m`, `1.5h`, `80ms`, and of a number.  name: of the option, for the UserError.

    Raises UserError for a text without a unit, which people read as milliseconds or seconds.
    """
    if not isinstance(text, str):
        return float(text)
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)\s*", text)
    if found is None or found[2] not in ("", *UNITS_OF_TIME):
        raise UserError(f"{name} is {quoted(text)}; allowed: a time such as 90s, 10m, 1.5h or 80ms")
    if not found[2] and float(found[1]):
        raise UserError(f"{name} is {quoted(text)}, which has no unit; say {found[1]}ms or {found[1]}s")
    return float(found[1]) * UNITS_OF_TIME.get(found[2], 1.0)
