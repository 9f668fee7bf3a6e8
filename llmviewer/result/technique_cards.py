"""JSON objects of all techniques, for the command `techniques`, reports and the server."""

from __future__ import annotations

from typing import Any

from llmviewer.techniques import presets
from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION, load
from llmviewer.techniques.technique import Declared


def technique_list() -> list[dict[str, Any]]:
    """The entries of all techniques in the order of application; those without an option come last."""
    return [technique_card(name) for name in (*TECHNIQUES, *WITHOUT_OPTION)]


def technique_card(name: str) -> dict[str, Any]:
    """The registry's entry of a technique."""
    technique, option = load(name), TECHNIQUES.get(name)
    return {
        "name": name,
        "kind": technique.kind,
        "option": _command_line_option(name),
        "default": option.default if option else "",
        "summary": technique.summary,
        "parameters": dict(technique.parameters),
        "schema": technique.grammar.schema() if isinstance(technique, Declared) else {},
        "methods": {method: load(method).summary for method in METHODS.get(name, ())},
        "presets": list(presets.names(name)),
        "formula": technique.formula,
        "source": technique.source,
        "example": technique.example,
    }


def _command_line_option(name: str) -> str:
    """The command-line option of a technique, or ""."""
    if name in TECHNIQUES:
        return " ".join(OPTIONS[name].spellings(name))
    return next((f"--{option} {name}" for option, methods in METHODS.items() if name in methods), "")
