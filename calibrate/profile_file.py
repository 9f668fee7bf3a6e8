"""Text of a profile: a YAML header document, then one document per fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.hardware.chip import Chip
from llmviewer.timing.profile import SCHEMA, Fit


def text_of(chip: Chip, title: str, provenance: Mapping[str, Any], fits: Sequence[Fit]) -> str:
    """Text of the whole file."""
    header = [f"schema: {SCHEMA}", f"chip: {chip.name}", f"generation: {json.dumps(chip.generation)}"]
    header += [f"title: {json.dumps(title)}", f"fits: {len(fits)}", "provenance:"]
    header += [f"  {name}: {json.dumps(value)}" for name, value in provenance.items()]
    return "\n---\n".join(["\n".join(header), *map(_document, fits)]) + "\n"


def _document(fit: Fit) -> str:
    lines = [f"fit: {fit.key}", f"constants: {_flow(fit.constants)}", f"rows: {_flow(fit.rows)}"]
    lines += [f"range: {_flow({name: [*ends] for name, ends in fit.range.items()})}"]
    for name, table in (("residuals", fit.residuals), ("error", fit.error)):
        lines.append(f"{name}:")
        lines += [f"  {regime}: {_flow(value)}" for regime, value in table.items()]
    return "\n".join(lines)


def _flow(value: Any) -> str:
    """A value as one line of YAML, numbers with at most six digits."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
