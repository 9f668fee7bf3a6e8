"""An option of a question: of a run, a load, a sizing or of one question alone, each declared once.

The command line, the Python signatures, the HTTP API, the tools of assistants, the viewer and
docs/reference/options.md read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from inspect import Parameter, signature
from typing import Any, TypeVar

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen

Function = TypeVar("Function", bound=Callable[..., Any])

#: A smaller number is a typing error.
LEAST_NUMBER = 1e-9


class Kind(Enum):
    """Type of an option's value; TIME and TEXT are texts for which numbers are accepted, those of TIME in seconds."""

    WHOLE = "whole number"
    FRACTION = "fraction"
    NUMBER = "number"
    TIME = "time"
    TEXT = "text"
    WORD = "word"
    WORDS = "words"
    SWITCH = "switch"

    @property
    def metavar(self) -> str:
        """The word for a value in `--help`."""
        return {"WHOLE": "INTEGER", "FRACTION": "FLOAT", "NUMBER": "FLOAT", "SWITCH": "BOOLEAN", "WORDS": "WORDS"}.get(
            self.name, "TEXT"
        )


class Panel(Enum):
    """Sections of `--help`, in their order; COMMON has the options that most questions need."""

    COMMON = "Common options"
    LOAD = "Load"
    SIZING = "Sizing"
    COST = "Prices and power"
    WORKLOAD = "Workload"
    HARDWARE = "Hardware and scale"
    PRECISION = "Precision and compression"
    KERNELS = "Kernels"
    MEMORY = "Memory"
    GENERATION = "Generation and batching"
    OUTPUT = "Output"


@frozen
class Option:
    """Declaration of one option.

    group: workload, run, technique, load, sizing, or empty for one of a single question.  least: smallest whole number;
    0 lets a fraction be 0 too.  array: Python callers may pass a sequence, one value per point.  choices: known values;
    `closed` refuses others.  aliases: further spellings on the command line, after vLLM's names.  separator: between
    several values in sweeps and comparisons; "" where only one is allowed.  panel: where `--help` shows it.  repeated:
    the command line takes it several times.  argument: its value alone stands on the command line.  json: of its
    JSON Schema, where that is not of the kind.
    """

    kind: Kind
    help: str
    default: Any = None
    group: str = ""
    least: int = 1
    array: bool = False
    choices: tuple[str, ...] = ()
    closed: bool = False
    aliases: tuple[str, ...] = ()
    separator: str = ""
    panel: Panel = Panel.COMMON
    repeated: bool = False
    argument: bool = False
    json: Mapping[str, Any] = field(default_factory=dict)

    def spellings(self, name: str) -> tuple[str, ...]:
        """Spellings on the command line, the main one first; an option that is repeated is named in the singular."""
        singular = name.removesuffix("s") if self.kind is Kind.WORDS else name
        return ("--" + singular.replace("_", "-"), *self.aliases)

    def parsed(self, text: str) -> Any:
        """The value of a text of the command line; one that is no number stays a text, for `checked` to refuse."""
        if self.kind is Kind.WHOLE:
            return arguments.parse_size(text)
        if self.kind is Kind.NUMBER:
            return arguments.parse_count(text)
        return arguments.parse_number(text) if self.kind is Kind.FRACTION else text

    def checked(self, name: str, value: Any) -> Any:
        """The value of a single point.  Raises UserError for a wrong type, a value out of range or not allowed."""
        if value is None and self.default is None:
            return None
        given = self.parsed(value) if isinstance(value, str) else value
        checks: Mapping[Kind, Callable[[], Any]] = {
            Kind.WHOLE: lambda: arguments.whole_number(name, given, minimum=self.least),
            Kind.FRACTION: lambda: 0.0 if self._may_be_zero(given) else arguments.fraction(name, given),
            Kind.NUMBER: lambda: _above_zero(name, given),
            Kind.TIME: lambda: f"{given}s" if arguments.is_number(given) else arguments.path_or_name(name, given),
            Kind.TEXT: lambda: str(given) if arguments.is_number(given) else arguments.path_or_name(name, given),
            Kind.WORD: lambda: arguments.word(name, given, self.choices if self.closed else ()),
            Kind.WORDS: lambda: arguments.words(name, given),
            Kind.SWITCH: lambda: arguments.switch(name, given),
        }
        return checks[self.kind]()

    def _may_be_zero(self, value: Any) -> bool:
        return self.least == 0 and arguments.is_number(value) and value == 0

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of one value, without its default."""
        found: dict[str, Any] = {
            Kind.WHOLE: whole(self.least),
            Kind.FRACTION: {"type": "number", "exclusiveMinimum" if self.least else "minimum": 0, "maximum": 1},
            Kind.NUMBER: {"type": ["number", "string"]},
            Kind.TIME: {"type": ["string", "number"]},
            Kind.TEXT: {"type": ["string", "number"]},
            Kind.WORD: {"type": "string"},
            Kind.WORDS: {"type": "array", "items": {"type": "string"}},
            Kind.SWITCH: {"type": "boolean"},
        }[self.kind]
        if self.group == "technique":
            found["type"] = ["string", "number", *(["object"] if self.repeated else [])]
        elif self.choices:
            found |= {"enum": list(self.choices)} if self.closed else {"examples": list(self.choices)}
        return {**found, "description": self.help, **self.json}


def taking(*groups: Mapping[str, Option], defaults: Mapping[str, Any] | None = None) -> Callable[[Function], Function]:
    """Decorator of a function with **options: its signature names the options of these groups, each once.

    defaults: in place of the declared ones.
    """

    def signed(function: Function) -> Function:
        parameters = signature(function).parameters
        own = {name: one for name, one in parameters.items() if one.kind is not Parameter.VAR_KEYWORD}
        stated = {name: one.default for group in groups for name, one in group.items()} | dict(defaults or {})
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, default in stated.items()
            if name not in own
        ]
        function.__signature__ = signature(function).replace(parameters=[*own.values(), *added])  # type: ignore[attr-defined]
        return function

    return signed


def whole(least: int) -> dict[str, Any]:
    """The schema of a whole number, or of its text with a suffix as on the command line."""
    most = arguments.MAX_WHOLE_NUMBER
    return {
        "type": ["integer", "string"],
        "minimum": least,
        "maximum": most,
        "pattern": r"^[0-9.]+[kKmMbB]?(\+[0-9.]+[kKmMbB]?)*$",
    }


def _above_zero(name: str, value: Any) -> float:
    if not arguments.is_number(value) or not LEAST_NUMBER <= value < float("inf"):
        raise UserError(
            f"{name} is {quoted(value)}; allowed: a number above 0, such as 20, 1e9 or 1b, at least {LEAST_NUMBER:g}"
        )
    return float(value)
