"""The error type for wrong input: one line with the value, what is allowed, and the nearest match."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number

#: An error lists at most this many names; `list` commands show longer lists.
MAX_LISTED_NAMES = 25
#: Least similarity of a suggestion, and of one that begins with another letter: most typing errors come later.
LEAST_SIMILARITY, LEAST_WITH_ANOTHER_LETTER = 0.6, 0.75
#: Names are compared up to this length: comparing long ones takes time.
MAX_COMPARED_CHARACTERS = 100
#: Longest line of an error or a warning: names in it come from files of others.
MAX_LINE_CHARACTERS = 560
#: Credentials by their beginnings (Hugging Face, OpenAI, GitHub, NVIDIA, AWS, Slack, JSON Web Tokens), but not within a
#: word such as weight_...: no line repeats one, wherever it is from, since lines leave the machine.
CREDENTIALS = r"(?<![A-Za-z0-9])(hf_|sk-|gh[a-z]_|github_pat_|nvapi-|AKIA|xox[a-z]-|eyJ)[\w-]{16,}[\w.-]*"

#: A marked option by its name, and what is passed over: words of the user in quotes, and lines to type.
MARKED = r"(?<!\w)'[^']*'|`[^`]*`|(?<![\w-])--([a-z][\w-]*)"


class UserError(Exception):
    """Wrong input, in one line.

    A message marks options by two dashes (`--kv-cache-dtype`), since words such as link and set are of any sentence.
    `str()` is the line for callers of Python, HTTP and assistants, which have arguments in their place
    (`kv_cache_dtype`); the command line prints `marked` with the spelling that was typed, and exits with status 2.

    The line is printable and bounded whatever is in it, so that no file can send escape sequences to a terminal.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, MAX_LINE_CHARACTERS))

    @property
    def marked(self) -> str:
        """The line with marked options; errors that begin with the place of another one repeat this form of it."""
        return str(self.args[0])

    def __str__(self) -> str:
        return re.sub(MARKED, lambda found: (found[1] or "").replace("-", "_") or found[0], self.marked)


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Begin errors with the option that they are about, as messages mark it, unless they name it."""
    try:
        yield
    except UserError as error:
        if re.search(rf"{option}(?![\w-])", error.marked):
            raise
        raise type(error)(f"{option}: {error.marked}") from error


class FileError(UserError):
    """Wrong content of a file, whose fields may have the names of options: they are not spelled as these."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, one that begins with the same letter if any is close; None if none is."""
    from difflib import get_close_matches  # imported here because only errors need it

    folded, asked = {name.lower(): name for name in known}, word[:MAX_COMPARED_CHARACTERS].lower()
    alike = [name for name in folded if name[:1] == asked[:1]]
    found = get_close_matches(asked, alike, n=1, cutoff=LEAST_SIMILARITY)
    found = found or get_close_matches(asked, folded, n=1, cutoff=LEAST_WITH_ANOTHER_LETTER)
    return folded[found[0]] if found else None


def printable(value: object, limit: int = 60) -> str:
    """`value` as text for an error message: one line of at most `limit` printable characters."""
    try:
        text = str(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return "a number of thousands of digits"
    text = "".join(c if c.isprintable() else "?" for c in re.sub(CREDENTIALS, r"\1…", text[: 4 * limit + 1000]))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(value: object) -> str:
    """`value` for an error message: text in quotes, numbers as they are, only the type of containers."""
    if isinstance(value, str):
        return f"'{printable(value)}'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Number):
        return printable(value)
    kinds = {"dict": "mapping", "ndarray": "array"}
    kind = kinds.get(type(value).__name__, printable(type(value).__name__))
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def told(value: object) -> str:
    """`value` of a user's file for an error message: a number as it is, of a text only that it is one.

    A file given by mistake may hold anything, and an error must not repeat it.
    """
    if not isinstance(value, str):
        return quoted(value)
    try:
        float(value)
    except ValueError:
        return "a text" if value.strip() else "empty"
    return f"'{printable(value)}'"


def missing_extra(what: str, extra: str) -> UserError:
    """An error for packages that are not installed, with the commands that install their extra.

    what: a clause that says which package is needed, and what for.
    """
    return UserError(f"{what}: pip install 'llmviewer[{extra}]', in a checkout pip install -e '.[{extra}]'")


def unknown(
    noun: str,
    word: object,
    known: Iterable[str],
    *,
    where: str = "",
    hint: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> UserError:
    """An error for a name that is not in `known`; lists the known names if they are few.

    noun: what the name is of.  where: the file or field that has it.  hint: further advice.  elsewhere: names that
    other programs have, in lower case -> the known name.
    """
    names = sorted(known)
    close = ((elsewhere or {}).get(word.lower()) or nearest(word, names)) if isinstance(word, str) else None
    listed = f"; allowed: {', '.join(names)}" if len(names) <= MAX_LISTED_NAMES else ""
    guess = f"; did you mean '{close}'?" if close else ""
    message = f"unknown {noun} {quoted(word)}{listed}{guess}{f' ({hint})' if hint else ''}"
    return UserError(f"{where}: {message}" if where else message)
