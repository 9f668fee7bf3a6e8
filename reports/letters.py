"""Letters that replace long texts in table cells, and their legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from llmviewer.reports.page import Facts

#: Longer texts would make a column wider than its figures.
MAX_TEXT_LENGTH = 24


def letters(texts: Sequence[str]) -> Mapping[str, str]:
    """Returns text -> letter, in the order of the texts; empty if all are short or there are more than 26."""
    distinct = tuple(dict.fromkeys(texts))
    if max(map(len, distinct), default=0) <= MAX_TEXT_LENGTH or len(distinct) > len(ascii_uppercase):
        return {}
    return dict(zip(distinct, ascii_uppercase, strict=False))


def legend(titled: Mapping[str, Mapping[str, str]]) -> tuple[Facts, ...]:
    """Returns the legend of the letters of each title."""
    return tuple(
        Facts(title=title, lines=tuple((letter, text) for text, letter in found.items()))
        for title, found in titled.items()
        if found
    )
