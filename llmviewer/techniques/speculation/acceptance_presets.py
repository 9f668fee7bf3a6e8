"""Published acceptance by preset name, from acceptance_presets.yaml; imported only when needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks, from_lengths, from_success_rates

FILE = data.folder("techniques/speculation") / "acceptance_presets.yaml"
#: Counting convention of a source -> tokens added to its lengths; rates are per token and have no bonus token.
CONVENTIONS = {"with bonus token": 0.0, "without bonus token": 1.0, "rate per token": 0.0}
REQUIRED = ("name", "method", "target", "dataset", "convention", "source")
OPTIONAL = ("draft", "lengths", "rates", "drafted", "tree_tokens", "note")
_ROWS = data.read_yaml(FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published acceptance measurement.

    lengths: draft tokens (for a tree: its depth) -> mean tokens per pass; the bonus token is always included.
    drafted: most draft tokens in sequence.  tree_tokens: tree tokens per verification pass; 0 for a chain or if not
    published.
    """

    name: str
    method: str
    target: str
    dataset: str
    convention: str
    source: str
    acceptance: Acceptance
    draft: str = ""
    lengths: Mapping[int, float]
    drafted: int = 0
    tree_tokens: int = 0
    note: str = ""


def _presets() -> Iterator[Preset]:
    for row in _ROWS["presets"]:
        where = f"{FILE.name}: {row.get('name', 'a preset')}"
        data.check_keys(row, (*REQUIRED, *OPTIONAL), REQUIRED, where)
        if ("lengths" in row) == ("rates" in row):
            raise UserError(f"{where}: give either lengths or rates")
        added = CONVENTIONS[row["convention"]]
        lengths = {int(drafted): float(length) + added for drafted, length in row.get("lengths", {}).items()}
        fields: dict[str, Any] = {key: row[key] for key in (*REQUIRED, "draft", "tree_tokens", "note") if key in row}
        rates = tuple(map(float, row.get("rates", ())))
        acceptance = Acceptance(rates=rates, name=row["name"]) if rates else from_lengths(lengths, row["name"])
        drafted = int(row.get("drafted", max(lengths, default=0)))
        yield Preset(**fields, lengths=lengths, drafted=drafted, acceptance=acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPreset:
    """A published measurement of how often the target's token is the drafter's choice of each rank."""

    name: str
    method: str
    target: str
    dataset: str
    source: str
    ranks: Ranks
    draft: str = ""
    note: str = ""


def _rank_presets() -> Iterator[RankPreset]:
    required = ("name", "method", "target", "dataset", "success", "source")
    for row in _ROWS["ranks"]:
        data.check_keys(row, (*required, "draft", "note"), required, f"{FILE.name}: {row.get('name', 'ranks')}")
        fields: dict[str, Any] = {key: value for key, value in row.items() if key != "success"}
        yield RankPreset(**fields, ranks=from_success_rates(row["success"], row["name"]))


#: Preset name -> preset, in the order of the file.
PRESETS: dict[str, Preset] = {preset.name: preset for preset in _presets()}
RANKS: dict[str, RankPreset] = {preset.name: preset for preset in _rank_presets()}
