"""Values of options as text, such as `64,depth=10,rates=0.8/0.7`, by the signature of the function that takes them.

A parameter is declared once, `passes: Annotated[float, Number("passes of a block", 1, 64)] = 16`: parsing, bounds,
default, help, JSON Schema and the text of a value follow from it.  Positional parameters may be written without a name,
in their order; keyword-only ones need theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from inspect import Parameter, signature
from typing import Any, TypeAlias, get_type_hints

from llmviewer.core.frozen import frozen

Schema: TypeAlias = dict[str, Any]


class RefusedError(ValueError):
    """A text that a grammar does not take.

    subject: what it was read as.  word: the text; None if it is missing.  allowed: what is allowed, or what a missing
    parameter means.  known: names of which it had to be one, for the nearest match.
    """

    def __init__(self, subject: str, word: str | None, allowed: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"{subject} is {'missing' if word is None else repr(word)}; {allowed}")
        self.subject, self.word, self.allowed, self.known = subject, word, allowed, tuple(known)


@frozen
class Form:
    """How one parameter is written: any text, or what `parse` makes of it.

    help: what it means, without its default.  parse: text -> value; raises ValueError, whose message says what is
    allowed, or an error of its own.  default: text that is read if none is given, for values that cost time to make.
    unset: words for a default of None or zero.  name: its name if that is no Python name.
    """

    help: str
    parse: Callable[[str], Any] = str
    default: str = ""
    unset: str = ""
    name: str = ""

    def read(self, name: str, text: str) -> Any:
        """The value of a text.  Raises RefusedError."""
        try:
            return self.parse(text)
        except RefusedError:
            raise
        except ValueError as error:
            raise RefusedError(name, text, str(error)) from None

    def write(self, value: Any) -> str:
        """The text of a value, which is read as the same value."""
        return f"{value:.10g}" if isinstance(value, float) else str(value)

    def schema(self) -> Schema:
        """JSON Schema of the value, without description and default."""
        return {"type": "string"}


@frozen(kw_only=False)
class Number(Form):
    """A number from `low` to `high`, both included; `whole` ones only, or one of `words`, which stay text.

    number: text -> number, or anything else if it is none.
    """

    help: str
    low: float = 0.0
    high: float = 1e9
    whole: bool = False
    words: tuple[str, ...] = ()
    number: Callable[[str], object] = float

    def read(self, name: str, text: str) -> Any:
        """The number, a word as it is.  Raises RefusedError."""
        if text.lower() in self.words:
            return text.lower()
        try:
            value = float(self.number(text))  # type: ignore[arg-type]
        except (ValueError, TypeError, OverflowError):
            value = float("nan")
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise RefusedError(name, text, self.allowed)
        return value

    @property
    def allowed(self) -> str:
        """The allowed numbers in words, as errors have them."""
        kind = "a whole number" if self.whole else "a number"
        words = "".join(f", or {word}" for word in self.words)
        return f"allowed: {kind} from {self.low:g} to {self.high:,.10g}{words}"

    def schema(self) -> Schema:
        """JSON Schema of the number."""
        number = {"type": "integer" if self.whole else "number", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, {"enum": list(self.words)}]} if self.words else number


@frozen(kw_only=False)
class Choice(Form):
    """One of some words, or of the values of an Enum, whose member it becomes."""

    help: str
    words: type[Enum] | tuple[str, ...] = ()

    def read(self, name: str, text: str) -> Any:
        """The word, or the member of the Enum.  Raises RefusedError."""
        members = {self.write(word): word for word in self.words}
        if text not in members:
            raise RefusedError(name, text, f"allowed: {', '.join(members)}", members)
        return members[text]

    def write(self, value: Any) -> str:
        """The word, or that of the member."""
        return str(value.value if isinstance(value, Enum) else value)

    def schema(self) -> Schema:
        """JSON Schema of the words."""
        return {"enum": [self.write(word) for word in self.words]}


@frozen(kw_only=False)
class Flag(Form):
    """A word that is written alone, without a value."""

    help: str

    def schema(self) -> Schema:
        """JSON Schema of the flag."""
        return {"type": "boolean"}


@frozen(kw_only=False)
class Entry:
    """A parameter of a grammar.  argument: its name in Python.  name: its name in texts.  value: its default."""

    argument: str
    name: str
    form: Form
    value: Any
    named: bool

    @property
    def required(self) -> bool:
        """Whether a text must give it."""
        return self.value is Parameter.empty and not self.form.default

    @property
    def default(self) -> str:
        """Its default as help prints it; empty if it has none worth printing."""
        if self.form.unset or self.form.default:
            return self.form.unset or self.form.default
        silent = self.value is Parameter.empty or self.value is None or self.value is False
        return "" if silent else self.form.write(self.value)

    @property
    def help(self) -> str:
        """The meaning with the default."""
        text = self.form.help
        if not self.default:
            return text
        return f"{text[:-1]}; default: {self.default})" if text.endswith(")") else f"{text} (default: {self.default})"


@frozen(kw_only=False)
class Grammar:
    """The parameters of a function as text."""

    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Grammar:
        """The grammar of a function, of its parameters that are annotated with a Form."""
        hints = get_type_hints(function, include_extras=True)
        entries = {}
        for argument, parameter in signature(function).parameters.items():
            forms = [one for one in getattr(hints[argument], "__metadata__", ()) if isinstance(one, Form)]
            if forms:
                name, named = forms[-1].name or argument, parameter.kind is Parameter.KEYWORD_ONLY
                entries[name] = Entry(argument, name, forms[-1], parameter.default, named)
        return cls(entries)

    @classmethod
    def named(cls, forms: Mapping[str, Form]) -> Grammar:
        """The grammar of named parameters whose values are read one by one."""
        return cls({name: Entry(name, name, form, None, named=True) for name, form in forms.items()})

    def words(self, text: str) -> dict[str, str]:
        """Split `64,depth=10` into {"nodes": "64", "depth": "10"}; a flag has the empty text.  Raises ValueError."""
        positional = [entry.name for entry in self.entries.values() if not entry.named]
        if len(self.entries) == len(positional) == 1 and type(self.entries[positional[0]].form) is Form:
            return {positional[0]: text}  # a name or a path, which may contain anything
        if text.strip() and not self.entries:
            raise ValueError(f"it takes no parameter, not {text!r}")
        found: dict[str, str] = {}
        for at, part in enumerate(piece.strip() for piece in text.split(",") if text.strip()):
            if not part:
                raise ValueError(f"{text!r} has nothing between two commas")
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals and name not in self.entries and at < len(positional):
                name, equals, value = positional[at], "=", part
            if name not in self.entries:
                raise RefusedError("parameter", name, f"allowed: {', '.join(self.entries)}", self.entries)
            if name in found:
                raise ValueError(f"{name} is given twice")
            if bool(equals) is isinstance(self.entries[name].form, Flag):
                raise ValueError(f"{name} takes no value" if equals else f"{name} needs a value; write {name}=...")
            found[name] = value
        return found

    def read(self, text: str) -> dict[str, Any]:
        """Arguments of the function, by name, with all defaults.  Raises ValueError."""
        words = self.words(text)
        return {entry.argument: self._value(entry, words) for entry in self.entries.values()}

    def _value(self, entry: Entry, words: Mapping[str, str]) -> Any:
        if entry.name in words:
            return isinstance(entry.form, Flag) or entry.form.read(entry.name, words[entry.name])
        if entry.required:
            raise RefusedError(entry.name, None, entry.form.help)
        return entry.form.read(entry.name, entry.form.default) if entry.form.default else entry.value

    def write(self, values: Mapping[str, Any]) -> str:
        """The text of arguments, without those that have their default value."""
        parts = []
        for entry in self.entries.values():
            value = values.get(entry.argument, entry.value)
            if isinstance(entry.form, Flag):
                parts += [entry.name] * bool(value)
            elif value is not entry.value and value != entry.value:
                parts.append(f"{entry.name}={entry.form.write(value)}")
        return ",".join(parts)

    def help(self) -> dict[str, str]:
        """The meaning of every parameter with its default, by name."""
        return {entry.name: entry.help for entry in self.entries.values()}

    def schema(self) -> Schema:
        """JSON Schema of the parameters as an object."""
        properties = {}
        for entry in self.entries.values():
            properties[entry.name] = {**entry.form.schema(), "description": entry.help}
            if entry.default and not entry.form.unset:
                number = isinstance(entry.value, int | float)
                properties[entry.name]["default"] = entry.value if number else entry.default
        required = [entry.name for entry in self.entries.values() if entry.required]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
