"""Profiles -> text: a head, and a document per fit, one line per thing to say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.hardware.chip import Chip
from llmviewer.timing.profile import SCHEMA, Fit


def text_of(chip: Chip, title: str, provenance: Mapping[str, Any], fits: Sequence[Fit]) -> str:
    """The whole file."""
    head = [f"schema: {SCHEMA}", f"chip: {chip.name}", f"generation: {json.dumps(chip.generation)}"]
    head += [f"title: {json.dumps(title)}", f"fits: {len(fits)}", "provenance:"]
    head += [f"  {name}: {json.dumps(value)}" for name, value in provenance.items()]
    return "\n---\n".join(["\n".join(head), *map(_document, fits)]) + "\n"


def _document(fit: Fit) -> str:
    lines = [f"fit: {fit.key}", f"constants: {_flow(fit.constants)}", f"rows: {_flow(fit.rows)}"]
    lines += [f"range: {_flow({name: [*ends] for name, ends in fit.range.items()})}"]
    for name, table in (("residuals", fit.residuals), ("error", fit.error)):
        lines.append(f"{name}:")
        lines += [f"  {regime}: {_flow(value)}" for regime, value in table.items()]
    return "\n".join(lines)


def _flow(value: Any) -> str:
    """YAML in one line, numbers as short as they are."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
