"""The left side of a line of a contract, `MODEL [on CHIP][, WORD ...]`, as names and options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.language.option import Kind
from llmviewer.techniques.options import OPTIONS, WORKLOAD
from llmviewer.timing import engine

#: Spelling of an option without hyphens in front -> its name.
SPELLED = {
    spelling.lstrip("-").replace("-", "_"): name
    for name, one in OPTIONS.items()
    if name not in WORKLOAD
    for spelling in (name, *one.spellings(name))
}
SWITCHES = {"": True, "true": True, "false": False}
#: Values of options contain commas, without a blank after them.
SEPARATOR = re.compile(r",\s+")
HINT = "a word is an engine, or an option and its value, such as tp 2; a blank follows each comma"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, and where it runs.  hardware: empty for facts of the model alone.  options: of a run."""

    text: str
    model: str
    hardware: str
    options: Mapping[str, Any]


def subject(text: str) -> Subject:
    """The subject that a text describes.  Raises UserError."""
    first, *words = SEPARATOR.split(text.strip())
    model, *where = (part.strip() for part in re.split(r"\son(?:\s|$)", f" {first}", maxsplit=1))
    hardware = where[0] if where else ""
    if not model or (where and not hardware):
        raise UserError(f"configuration {quoted(text)} names no {'chip' if model else 'model'}; write MODEL on CHIP")
    options: dict[str, Any] = {}
    for word in words:
        name, value = _option(word.strip())
        if name in options:
            raise UserError(f"{name} is given twice; remove one of them")
        options[name] = value
    return Subject(text=text, model=model, hardware=hardware, options=options)


def _option(word: str) -> tuple[str, Any]:
    """The name and the value of `vllm`, `tp 2` or `enforce_eager`.  Raises UserError."""
    spelled, _, text = (part.strip() for part in word.partition(" "))
    if not text and spelled.partition("==")[0] in engine.names():
        return "engine", spelled
    name = SPELLED.get(spelled.lstrip("-").replace("-", "_"))
    if name is None:
        raise unknown("word", word if "," in word else spelled, {*SPELLED, *engine.names()}, hint=HINT)
    return name, _value(name, text)


def _value(name: str, text: str) -> Any:
    """The value of an option as Python calls take it.  Raises UserError for what no option of its kind has."""
    kind = OPTIONS[name].kind
    if kind is Kind.SWITCH:
        if text not in SWITCHES:
            raise unknown(name, text, ("true", "false"))
        return SWITCHES[text]
    if not text:
        raise UserError(f"{name} has no value; write it after a blank: {name} VALUE")
    if kind is Kind.WORDS:
        return tuple(text.split())
    return OPTIONS[name].parsed(text)
