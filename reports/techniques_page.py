"""Techniques: the registry as a table, one of them in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import Facts, Page


def listed(cards: Sequence[Mapping[str, Any]]) -> Page:
    """One line per technique, in the order of application."""
    lines = tuple((_called(card), str(card["kind"]), str(card["summary"])) for card in cards)
    hint = (("", "llmviewer techniques show NAME: formula, source and a command to try"),)
    return (Facts(lines=lines), Facts(lines=hint))


def _called(card: Mapping[str, Any]) -> str:
    """Its option; its name where it has none."""
    return str(card["option"] or card["name"]).split()[0]


def shown(card: Mapping[str, Any]) -> Page:
    """Everything the registry says of one."""
    lines = tuple((name.capitalize(), str(value)) for name, value in card.items() if value)
    return (Facts(lines=lines),)
