"""The technique registry as lists, or one technique in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.reports.page import Facts, Page


def listed(cards: Sequence[Mapping[str, Any]]) -> Page:
    """Returns all techniques by kind, each with its summary, and the presets of those that have some."""
    kinds = dict.fromkeys(str(card["kind"]) for card in cards)
    groups = tuple(Facts(lines=_lines(cards, kind), title=kind.capitalize().replace("Kv", "KV")) for kind in kinds)
    presets = tuple((_label(card), _value(card["presets"])) for card in cards if card["presets"] and card["default"])
    hint = (("", "llmviewer techniques show NAME: parameters, formula, source and an example command"),)
    return (*groups, Facts(title="Presets", lines=presets), Facts(lines=hint))


def _lines(cards: Sequence[Mapping[str, Any]], kind: str) -> tuple[tuple[str, ...], ...]:
    return tuple((_label(card), str(card["summary"])) for card in cards if card["kind"] == kind)


def _label(card: Mapping[str, Any]) -> str:
    """Returns the technique's option, or its name if it shares an option or has none."""
    name = str(card["name"])
    option, *_ = str(card["option"] or name).split()
    return option if option == "--" + name.replace("_", "-") else name


def shown(card: Mapping[str, Any]) -> Page:
    """Returns all fields of one technique, with its parameters and its methods as separate lists."""
    lists = {name: value for name, value in card.items() if isinstance(value, Mapping)}
    lines = tuple((name.capitalize(), _value(value)) for name, value in card.items() if value and name not in lists)
    facts = (Facts(title=name.capitalize(), lines=tuple(value.items())) for name, value in lists.items() if value)
    return (Facts(lines=lines), *facts)


def _value(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
