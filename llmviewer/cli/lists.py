"""Advice for lists given to `analyze` and `compare`, which answer one request: the command to use, ready to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Longest command that an error prints.
MAX_COMMAND_CHARACTERS = 300
#: Command -> options that may not be lists.
SINGLE = {"analyze": ("model", "hardware", *OPTIONS), "compare": tuple(WORKLOAD)}
#: Options of these commands that `sweep` does not have.
NOT_IN_SWEEP = ("--no-fit-check",)
#: A number with commas between its thousands, or a list.
THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})+", re.ASCII)


def advised(words: list[str], error: UserError) -> UserError:
    """The error of a command line, replaced by the command to use if it rejects a list."""
    single = SINGLE.get(words[0], ())
    lists = {name: value for name, value in _given(words[1:]) if name in single and _is_list(name, value)}
    rejected = next((name for name, value in lists.items() if _mentions(error.marked, name, value)), None)
    if rejected is None:
        return error
    command = "compare" if WORKLOAD.keys().isdisjoint(lists) else "sweep"
    commas = {text: text.replace(";", ",") for name, text in lists.items() if _separator(name) == ","}
    kept = [commas.get(word, word) for word in words[1:] if command != "sweep" or word not in NOT_IN_SWEEP]
    line = printable(shlex.join(["llmviewer", command, *kept]), MAX_COMMAND_CHARACTERS)
    text = lists[rejected]
    one = f", {text.replace(',', '')} without commas" if rejected in WORKLOAD and THOUSANDS.fullmatch(text) else ""
    return UserError(f"{rejected} is {quoted(text)}; {words[0]} takes one value{one}; for lists use {command}: {line}")


def _given(words: list[str]) -> Iterator[tuple[str, str]]:
    """Name and text of the model, the hardware and the options of a run on a command line."""
    spelled = {spelling: name for name, one in OPTIONS.items() for spelling in one.spellings(name)}
    spelled["--hardware"] = "hardware"
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if name in spelled and equals:
            yield spelled[name], value
        elif before in spelled:
            yield spelled[before], word
        elif not word.startswith("-") and not before.startswith("-"):
            yield "model", word
        before = "" if before in spelled else word


def _is_list(name: str, value: str) -> bool:
    """Whether the text is a list or a range to the commands that take them."""
    if name in WORKLOAD:
        return "," in value or ":" in value
    if name in OPTIONS:
        separator = _separator(name)
        return bool(separator) and (separator in value or (";" in value and "/" not in value))
    return "," in value and not Path(value).exists()


def _separator(name: str) -> str:
    """The separator of an option's values; empty for those that take one value, and for sizes."""
    return OPTIONS[name].separator if name in OPTIONS else ""


def _mentions(message: str, name: str, value: str) -> bool:
    """Whether an error is about this value."""
    names = (name, OPTIONS[name].spellings(name)[0]) if name in OPTIONS else ()
    return any(text in message for text in (*names, quoted(value)))
