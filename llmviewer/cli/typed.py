"""Errors with options as they are typed, and the command to use for lists that are given to one request."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import MARKED, FileError, UserError, printable, quoted
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Words of an error in front of the name of an option, or behind one that begins it.
BEFORE = ("give", "one of", "remove", "use", "change", "but", "beside", "such as")
BEHIND = "is|has|have|needs|takes|says|searches|and|or|both|of"
#: Between the names of several options.
BETWEEN = ", | and | or "


def as_typed(error: UserError, words: Sequence[str], command: Any) -> UserError:
    """The error of a command line with the spelling of every option it names, and of one whose value it rejects."""
    spelled = _spelled(words, command)
    main = {name: one.spellings(name)[0] for name, one in OPTIONS.items()}
    marks = {f"--{name.replace('_', '-')}": option for name, option in {**main, **spelled}.items()}
    text = re.sub(MARKED, lambda found: marks.get(found[0], found[0]), error.marked)
    if isinstance(error, FileError):
        return FileError(text)
    for name, option in spelled.items():
        text = re.sub(_pattern(name), option, text)
    text = _in_lists(text, spelled)
    values = list(_values(words, spelled))
    shown = [quoted(word) for word in words]  # long words are cut: two may look alike
    rejected = next(
        (one for one, value in values if quoted(value) in text and shown.count(quoted(value)) < 2),  # of one word only
        "",
    )
    named = any(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text) for option, _ in values)
    return UserError(text if named or not rejected else f"{rejected}: {text}")


def of_line(error: UserError, flags: Mapping[str, str]) -> UserError:
    """The error with options of a launch line as they stand there.  flags: spelling of an option -> its flag."""
    text = _replaced(error.marked, flags)
    return error if text == error.marked else type(error)(f"--from: {text}")


def of_bits(error: UserError, words: Sequence[str]) -> UserError:
    """The error with numbers of bits in place of the formats that stand for them."""
    typed = {word.partition("=")[0] for word in words}
    bits = {"--weight-bits": "--quantization", "--activation-bits": "--quantization", "--kv-bits": "--kv-cache-dtype"}
    flags = {option: name for name, option in reversed(bits.items()) if name in typed and option not in typed}
    return type(error)(_replaced(error.marked, flags)) if flags else error


def _replaced(text: str, flags: Mapping[str, str]) -> str:
    """The text with other spellings of some options."""
    pattern = "|".join(rf"(?<![\w-]){re.escape(option)}(?![\w-])" for option in flags)
    return re.sub(pattern, lambda found: flags[found[0]], text) if flags else text


def _spelled(words: Sequence[str], command: Any) -> dict[str, str]:
    """Name of a parameter -> the spelling of its option that is on the line, the last one, which counts; or its own."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    typed = [word.partition("=")[0] for word in reversed(words)]
    options = (one for one in command.params if one.param_type_name == "option")
    return {one.name: next((option for option in typed if option in one.opts), _main(one)) for one in options}


def _main(option: Any) -> str:
    """The spelling of an option that nobody typed: its own name, else the longest."""
    own = f"--{option.name.replace('_', '-')}"
    return own if own in option.opts else max(option.opts, key=len)


def _pattern(name: str) -> str:
    """The pattern of an option in an error: several words anywhere, one word where a sentence speaks of it."""
    if "_" in name:
        return rf"(?<![\w/.'=-]){name}(?![\w/'-])"
    behind = "|".join(rf"(?<={words} )" for words in BEFORE)
    return rf"(?:^(?={name}(?::| (?:{BEHIND})\b))|{behind}){name}(?![\w/'-])"


def _in_lists(text: str, spelled: Mapping[str, str]) -> str:
    """The text with the names beside a spelled option in a list."""
    names = "|".join(map(re.escape, spelled))
    ends = (
        (rf"(--[\w-]+(?:{BETWEEN}))({names})(?![\w/'-])", lambda found: found[1] + spelled[found[2]]),
        (rf"(?<![\w/'-])({names})((?:{BETWEEN})--[\w-]+)", lambda found: spelled[found[1]] + found[2]),
    )
    for _ in spelled:
        before = text
        for pattern, told in ends:
            text = re.sub(pattern, told, text)
        if text == before:
            break
    return text


def _values(words: Sequence[str], spelled: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options on the line with each value that they list."""
    options = set(spelled.values())
    for word, after in zip(words, (*words[1:], ""), strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            text = value if equals else after
            yield from ((option, one) for one in dict.fromkeys((text, *re.split("[,;]", text))) if one)


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
        return _with_semicolons(words, error)
    command = "compare" if WORKLOAD.keys().isdisjoint(lists) else "sweep"
    commas = {text: text.replace(";", ",") for name, text in lists.items() if _separator(name) == ","}
    kept = [commas.get(word, word) for word in words[1:] if command != "sweep" or word not in NOT_IN_SWEEP]
    line = printable(shlex.join(["llmviewer", command, *kept]), MAX_COMMAND_CHARACTERS)
    text = lists[rejected]
    one = f", {text.replace(',', '')} without commas" if rejected in WORKLOAD and THOUSANDS.fullmatch(text) else ""
    return UserError(f"{rejected} is {quoted(text)}; {words[0]} takes one value{one}; for lists use {command}: {line}")


def _with_semicolons(words: list[str], error: UserError) -> UserError:
    """The error, with the separator of lists of an option that it is about, if the line has commas there alone."""
    for name, value in _given(words[1:]):
        several = _separator(name) == ";" and "," in value and ";" not in value
        if several and OPTIONS[name].spellings(name)[0] in error.marked:
            return type(error)(f"{error.marked}; several values stand between semicolons: '{value.replace(',', ';')}'")
    return error


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
    return "," in value and not data.is_there(Path(value))


def _separator(name: str) -> str:
    """The separator of an option's values; empty for those that take one value, and for sizes."""
    return OPTIONS[name].separator if name in OPTIONS else ""


def _mentions(message: str, name: str, value: str) -> bool:
    """Whether an error is about this value."""
    names = (name, OPTIONS[name].spellings(name)[0]) if name in OPTIONS else ()
    return any(text in message for text in (*names, quoted(value)))
