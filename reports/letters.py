"""Long texts that many cells repeat: a letter for each, and a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase

from llmviewer.reports.page import Facts

#: A longer text makes a column wider than what stands in it.
LONGEST = 24


def letters(texts: Sequence[str]) -> Mapping[str, str]:
    """Text -> its letter, in the order of the texts; nothing where all are short or there are more than letters."""
    distinct = tuple(dict.fromkeys(texts))
    if max(map(len, distinct), default=0) <= LONGEST or len(distinct) > len(ascii_uppercase):
        return {}
    return dict(zip(distinct, ascii_uppercase, strict=False))


def legend(titled: Mapping[str, Mapping[str, str]]) -> tuple[Facts, ...]:
    """What the letters under each title stand for."""
    return tuple(
        Facts(title=title, lines=tuple((letter, text) for text, letter in found.items()))
        for title, found in titled.items()
        if found
    )
