"""One error type for everything a user can mend: what is wrong, what is allowed, the nearest match, in one line."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Number

#: So many names an error lists; more are what `list` commands are for.
MOST_LISTED = 16
#: No name anybody means is longer; comparing a longer one costs time.
LONGEST_NAME = 100


class UserError(Exception):
    """A wrong input.  `str()` is the one line the terminal shows; the command line exits with status 2."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, or None where nothing is close."""
    from difflib import get_close_matches  # imported here: only an error needs it

    folded = {name.lower(): name for name in known}
    found = get_close_matches(word[:LONGEST_NAME].lower(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def shown(value: object, limit: int = 60) -> str:
    """`value` as an error message may print it: one line, printable, not longer than `limit` characters."""
    try:
        text = str(value)
    except ValueError:  # Python prints no integer of over 4300 digits
        return "a number of thousands of digits"
    text = "".join(c if c.isprintable() else "?" for c in text[: 4 * limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(value: object) -> str:
    """`value` by itself, as its writer wrote it: text in quotes, numbers bare, of what may be large its kind alone."""
    if isinstance(value, str):
        return f"'{shown(value)}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Number):
        return shown(value)
    kinds = {"dict": "mapping", "ndarray": "array"}
    kind = kinds.get(type(value).__name__, shown(type(value).__name__))
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def unknown(what: str, word: object, known: Iterable[str], *, where: str = "", hint: str = "") -> UserError:
    """An error for a name that is not in `known`; lists the names when they are few.

    where: the file or field it stands in.  hint: what else helps.
    """
    names = sorted(known)
    close = nearest(str(word), names) if isinstance(word, str) else None
    listed = f"; allowed: {', '.join(names)}" if len(names) <= MOST_LISTED else ""
    guess = f"; did you mean '{close}'?" if close else ""
    said = f"unknown {what} {quoted(word)}{listed}{guess}{f' ({hint})' if hint else ''}"
    return UserError(f"{where}: {said}" if where else said)
