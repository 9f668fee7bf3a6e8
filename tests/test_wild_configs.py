"""Configs found in public repositories: accepted, or refused for a reason; skipped where the collection is absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.models.load import from_fields

#: A folder beside the checkout, as for measured rows; the configs are data of their authors.
WILD = Path(__file__).resolve().parents[2] / "shared" / "configs" / "wild.json"
#: Parts of refusals that name their reason.
REASONS = (
    "is a draft head",
    "unknown model_type",
    "missing field",
    "must be a mapping",
    "is not known",
    "not supported for this architecture",
    "are not divisible by",  # sizes under another tool's names
    "must list",
    "a summary by",  # another tool's excerpt of a config
)
#: Accepted of 159 configs; 25 others are draft heads, 3 vision towers, 32 excerpts in other tools' lists.
ACCEPTED = 99


@pytest.mark.skipif(not WILD.exists(), reason="the collection of configs is absent")
def test_configs_are_accepted_or_refused_for_a_reason() -> None:
    lines: list[str] = []
    configs: dict[str, dict[str, Any]] = json.loads(WILD.read_text(encoding="utf-8"))
    for entry in configs.values():
        try:
            from_fields(entry["config"])
        except UserError as error:
            lines.append(str(error))
    assert len(configs) - len(lines) >= ACCEPTED
    assert [line for line in lines if not any(reason in line for reason in REASONS)] == []
