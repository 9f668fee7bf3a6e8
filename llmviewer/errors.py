"""One error type for everything a user can mend: what is wrong, what is allowed, the nearest match, in one line."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(Exception):
    """A wrong input.  `str()` is the one line the terminal shows; the command line exits with status 2."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, or None where nothing is close."""
    from difflib import get_close_matches  # imported here: only an error needs it

    folded = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), folded, n=1, cutoff=0.5)
    return folded[found[0]] if found else None


def shown(value: object, limit: int = 60) -> str:
    """`value` as an error message may print it: one line, printable, not longer than `limit` characters."""
    if isinstance(value, (dict, list, tuple, set)):
        return f"a {type(value).__name__}"  # printing it may be as large as its writer wished
    text = "".join(c if c.isprintable() else "?" for c in str(value)[: 4 * limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def unknown(what: str, word: object, known: Iterable[str], hint: str = "") -> UserError:
    """An error for a name that is not in `known`; lists the names when they are few."""
    names = sorted(known)
    close = nearest(str(word), names)
    listed = f"; allowed: {', '.join(names)}" if len(names) <= 12 else ""
    guess = f"; did you mean '{close}'?" if close else ""
    return UserError(f"unknown {what} '{shown(word)}'{listed}{guess}{'; ' + hint if hint else ''}")
