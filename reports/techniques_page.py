"""Techniques: the registry as a table, one of them in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.reports.page import Facts, Page


def listed(cards: Sequence[Mapping[str, Any]]) -> Page:
    """The techniques by kind, each with what it does."""
    kinds = dict.fromkeys(str(card["kind"]) for card in cards)
    groups = tuple(Facts(lines=_lines(cards, kind), title=kind.capitalize().replace("Kv", "KV")) for kind in kinds)
    hint = (("", "llmviewer techniques show NAME: parameters, formula, source and a command to try"),)
    return (*groups, Facts(lines=hint))


def _lines(cards: Sequence[Mapping[str, Any]], kind: str) -> tuple[tuple[str, ...], ...]:
    return tuple((_called(card), str(card["summary"])) for card in cards if card["kind"] == kind)


def _called(card: Mapping[str, Any]) -> str:
    """The option; of what has none of its own, and of the methods of one, the name."""
    name = str(card["name"])
    option, *_ = str(card["option"] or name).split()
    return option if option == "--" + name.replace("_", "-") else name


def shown(card: Mapping[str, Any]) -> Page:
    """Everything the registry says of one; what may stand in its text is a list of its own."""
    lines = tuple((name.capitalize(), _value(value)) for name, value in card.items() if value and name != "parameters")
    parameters = tuple((str(name), str(text)) for name, text in card["parameters"].items())
    return (Facts(lines=lines), *((Facts(title="Parameters", lines=parameters),) if parameters else ()))


def _value(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
