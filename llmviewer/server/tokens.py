"""Answers within the tokens that an assistant has for them: what is left out is counted where it stood."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

#: Tokens of one answer.
MOST = 2000
#: Significant digits of a value.
DIGITS = 5
#: Share of an answer from which a group of lists is cut before others.
LARGE = 0.15
#: Name of the list that names the entries of every row of a table, which is whole.
COLUMNS = "columns"
#: Letters of a word, and digits of a number, that are one token: tokenizers have most English words whole.
PIECES = re.compile(r"\d{1,3}|[^\W\d_]{1,6}|[^\w\s]|_")


def tokens(value: Any) -> int:
    """Tokens of a value as JSON text: digits in threes, letters in sixes, every sign alone."""
    return len(PIECES.findall(json.dumps(value)))


def fitted(answer: dict[str, Any], most: int = MOST) -> dict[str, Any]:
    """An answer with values of DIGITS digits, cut until it has at most so many tokens.

    Lists, and mappings of mappings as those of metrics, lose their last entries, up to half at once: those that are
    nested deepest first, all at the same place alike.  Beside each stands how many of its entries are left out.
    """
    found: dict[str, Any] = rounded(answer)
    while (size := tokens(found)) > most:
        groups: dict[tuple[str, ...], list[tuple[dict[str, Any], str]]] = {}
        for path, parent, name in _lists(found, ()):
            groups.setdefault(path, []).append((parent, name))
        sizes = {path: sum(tokens(parent[name]) for parent, name in group) for path, group in groups.items()}
        if not sizes:
            break
        large = [path for path in sizes if sizes[path] >= LARGE * size]
        chosen = max(large or sizes, key=lambda path: (len(path) if large else 0, sizes[path]))
        for parent, name in groups[chosen]:
            _cut(parent, name, max(1.0 - (size - most) / sizes[chosen], 0.5))
    return found


def rounded(value: Any) -> Any:
    """A value with numbers of DIGITS significant digits; whole numbers stay."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _lists(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
    """Parts that may be cut: the path of its names, the mapping that holds it, and its name there."""
    for name, one in value.items() if isinstance(value, dict) else ():
        place = (*path, name)
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if (
            len(inner) > 1
            and name != COLUMNS
            and (isinstance(one, list) or all(isinstance(each, dict) for each in inner))
        ):
            yield place, value, name
        for each in (one, *(inner if isinstance(one, list) else ())):
            yield from _lists(each, place)


def _cut(parent: dict[str, Any], name: str, share: float) -> None:
    """Keep a share of a list or mapping, but never all of it, and count the others beside."""
    own = parent[name]
    kept = min(max(int(len(own) * share), 1), len(own) - 1)
    parent[name] = own[:kept] if isinstance(own, list) else dict(list(own.items())[:kept])
    left_out = f"{name}_left_out"
    parent[left_out] = parent.get(left_out, 0) + len(own) - kept
