"""One side of a comparison: a line as typed after `llmviewer analyze`, or a mapping of its names to values."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llmviewer.api import build, calls
from llmviewer.api.configuration import configuration
from llmviewer.api.trials import run_line
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import TIMES, Setting, settings, with_figures
from llmviewer.language.option import Kind
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Option as typed -> its name.
SPELLED = {
    "--hardware": "hardware",
    **{spelling: name for name, one in OPTIONS.items() for spelling in one.spellings(name)},
}
#: Words in front of a line that was copied whole.
COMMAND = ("llmviewer", "analyze")
DEFAULTS: Mapping[str, Any] = {name: one.default for name, one in OPTIONS.items()}


@frozen
class Side:
    """One run.  text: as it was given; of a mapping the line that states the same.

    words: every option of a run and size by name, defaults included; None where the engine chooses.
    """

    text: str
    model: Any
    hardware: Any
    words: Mapping[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run that are not at their defaults, or stated where an engine would choose."""
        return options_of(self.words)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Figures and times of the chip that the run sets.  Raises UserError."""
        text = self.words["set"]
        return () if text == DEFAULTS["set"] else settings(text)

    @property
    def chip(self) -> Chip:
        """The chip with the figures that the run sets.  Raises UserError."""
        own = build.chip_of(self.hardware)
        return with_figures(own, [one for one in self.settings if one.name not in TIMES])

    @property
    def times(self) -> Mapping[str, float]:
        """Factors of launches and messages that the run sets, by name."""
        return {one.name: one.factor for one in self.settings if one.name in TIMES}

    @property
    def request(self) -> Request:
        """The request of the sizes.  Raises UserError."""
        return calls.request(*(self.words[name] for name in WORKLOAD))


def options_of(words: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the words of a run that state what would be otherwise without them."""
    engine = words["engine"] != DEFAULTS["engine"]
    at_defaults = {
        name for name in OPTIONS if words[name] == DEFAULTS[name] and not (engine and name in build.OF_ENGINE)
    }
    left_out = {*WORKLOAD, *at_defaults}
    return {name: value for name, value in words.items() if name not in left_out and value is not None}


def side(given: object) -> Side:
    """The side that a line or a mapping states.  Raises UserError."""
    if isinstance(given, str):
        return _side(given, dict(_words(_lexed(given))))
    if isinstance(given, Mapping):
        made = _side("", dict(given))
        return replace(made, text=shlex.join(_line(made)))
    raise UserError(f"a side is {quoted(given)}; expected a line of analyze, or a mapping of its arguments")


def _line(made: Side) -> list[str]:
    """The words of a run on the command line."""
    sizes = {name: made.words[name] for name in WORKLOAD}
    return [word for one in run_line(made.model, made.hardware, {**sizes, **made.options}).values() for word in one]


def _lexed(line: str) -> list[str]:
    words = arguments.shell_words(line)
    for name in COMMAND:
        words = words[1:] if words[:1] == [name] else words
    return words


def _side(text: str, given: dict[str, Any]) -> Side:
    for name in ("model", "hardware"):
        if given.get(name) in (None, ""):
            raise UserError(f"no {name}; write MODEL --hardware CHIP and options, as for analyze")
    model, hardware = given.pop("model"), given.pop("hardware")
    for name in given:
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS)
    stated = {name: _checked(name, value) for name, value in given.items() if value is not None}
    chip, stated, count = build.with_devices(hardware, stated)
    if count:
        configuration(model, hardware, **{name: value for name, value in stated.items() if name not in WORKLOAD})
    chosen = dict.fromkeys(build.OF_ENGINE) if stated.get("engine", DEFAULTS["engine"]) != DEFAULTS["engine"] else {}
    words = {**DEFAULTS, **chosen, **stated}
    return Side(text=text, model=model, hardware=chip, words=words)


def _checked(name: str, value: Any) -> Any:
    """The value as the option takes it; techniques take the text that the command line has."""
    declared = OPTIONS[name]
    return declared.checked(name, build.technique_text(name, value) if declared.group == "technique" else value)


def _words(words: list[str]) -> Iterator[tuple[str, Any]]:
    """Names and values on a line, each once; values of an option that may be repeated are joined."""
    found: dict[str, Any] = {}
    rest = list(words)
    while rest:
        name, value = _next(rest)
        found[name] = _joined(name, found[name], value) if name in found else value
    yield from found.items()


def _joined(name: str, first: Any, second: Any) -> Any:
    """Both values of an option that stands twice on a line.  Raises UserError where it may stand once."""
    if isinstance(second, tuple):
        return (*first, *second)
    if name in OPTIONS and OPTIONS[name].repeated:
        return f"{first},{second}"
    raise UserError(f"{name} is given twice; remove one of them")


def _next(rest: list[str]) -> tuple[str, Any]:
    """The next name and value, removed from the words that are left."""
    word = rest.pop(0)
    if not word.startswith("-"):
        return "model", word
    spelled, equals, text = word.partition("=")
    if spelled not in SPELLED:
        raise unknown("option", spelled, SPELLED, hint="options are those of analyze")
    name = SPELLED[spelled]
    if name != "hardware" and OPTIONS[name].kind is Kind.SWITCH:
        return name, True
    if not equals and not rest:
        raise UserError(f"{spelled} has no value; write it behind the option")
    value = text if equals else rest.pop(0)
    if name == "hardware":
        return name, value
    return name, (value,) if OPTIONS[name].kind is Kind.WORDS else OPTIONS[name].parsed(value)
