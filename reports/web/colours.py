"""Colours of figures: the names that charts use, replaced by those of the report's style sheet in either theme."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from llmviewer.reports.html.page import TEMPLATES

SHEET = TEMPLATES / "report.css"
THEMES = ("light", "dark")
#: Bound -> its name in the style sheet, where it differs.
RENAMED = {"link": "link-bound"}


@cache
def sheet() -> str:
    """The report's style sheet, which the viewer shares."""
    return SHEET.read_text(encoding="utf-8")


@cache
def palette(theme: str) -> dict[str, str]:
    """Name of a custom property -> colour, in a theme."""
    roots = re.findall(r":root\s*\{([^}]*)\}", sheet())
    found: dict[str, str] = {}
    for root in roots[: 1 + THEMES.index(theme)]:
        found |= dict(re.findall(r"(--[\w-]+):\s*([^;]+);", root))
    return found


def coloured(value: Any, theme: str) -> Any:
    """A figure, or a part of it, with the theme's colours for their names."""
    if isinstance(value, str):
        return palette(theme).get(value, value) if value.startswith("--") else value
    if isinstance(value, dict):
        return {name: coloured(part, theme) for name, part in value.items()}
    return [coloured(part, theme) for part in value] if isinstance(value, (list, tuple)) else value


def of_bound(bound: str, theme: str, tint: str = "") -> str:
    """The colour of a bound.  tint: "-tint" for the pale one of areas."""
    return palette(theme)[f"--{RENAMED.get(bound, bound)}{tint}"]
