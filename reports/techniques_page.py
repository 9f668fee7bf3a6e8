"""The technique registry as lists, or one technique in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.reports.page import Facts, Page


def listed(cards: Sequence[Mapping[str, Any]]) -> Page:
    """Returns all techniques by kind, each with its summary."""
    kinds = dict.fromkeys(str(card["kind"]) for card in cards)
    groups = tuple(Facts(lines=_lines(cards, kind), title=kind.capitalize().replace("Kv", "KV")) for kind in kinds)
    hint = (("", "llmviewer techniques show NAME: parameters, formula, source and an example command"),)
    return (*groups, Facts(lines=hint))


def _lines(cards: Sequence[Mapping[str, Any]], kind: str) -> tuple[tuple[str, ...], ...]:
    return tuple((_label(card), str(card["summary"])) for card in cards if card["kind"] == kind)


def _label(card: Mapping[str, Any]) -> str:
    """Returns the technique's option, or its name if it shares an option or has none."""
    name = str(card["name"])
    option, *_ = str(card["option"] or name).split()
    return option if option == "--" + name.replace("_", "-") else name


def shown(card: Mapping[str, Any]) -> Page:
    """Returns all fields of one technique, with its parameters as a separate list."""
    lines = tuple((name.capitalize(), _value(value)) for name, value in card.items() if value and name != "parameters")
    parameters = tuple((str(name), str(text)) for name, text in card["parameters"].items())
    return (Facts(lines=lines), *((Facts(title="Parameters", lines=parameters),) if parameters else ()))


def _value(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
