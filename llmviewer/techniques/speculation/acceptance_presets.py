"""Published acceptance by preset name, from acceptance_presets.yaml; imported only when needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import stated
from llmviewer.techniques.speculation.acceptance import Acceptance, Ranks, from_lengths, from_success_rates

FILE = data.folder("techniques/speculation") / "acceptance_presets.yaml"
#: Counting convention of a source -> tokens added to its lengths; rates are per token and have no bonus token.
CONVENTIONS = {"with bonus token": 0.0, "without bonus token": 1.0, "rate per token": 0.0}


def _lengths(value: Any) -> dict[int, float]:
    """Mean lengths by the number of draft tokens."""
    found = record.mapped(record.NUMBER)(value)
    for key in found:
        if not key.isdecimal():
            raise record.refusal("numbers of draft tokens as keys", key)
    return {int(key): length for key, length in found.items()}


@frozen
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
    convention: str = field(metadata=stated(record.choice("convention", CONVENTIONS)))
    source: str
    acceptance: Acceptance
    draft: str = ""
    lengths: Mapping[int, float] = field(default_factory=dict, metadata=stated(_lengths))
    drafted: int = 0
    tree_tokens: int = 0
    note: str = ""


def _preset(row: Any) -> Preset:
    """A preset from its row in the file."""
    beside = {"rates": record.listed(record.number(0.0, 1.0), least=1)}
    found, stated_rates = record.split(Preset, row, beside=beside, given=("acceptance",))
    rates = stated_rates.get("rates", ())
    if ("lengths" in found) == bool(rates):
        raise UserError("give either lengths or rates")
    added = CONVENTIONS[found["convention"]]
    found["lengths"] = {drafted: length + added for drafted, length in found.get("lengths", {}).items()}
    found.setdefault("drafted", max(found["lengths"], default=0))
    name = found["name"]
    return Preset(
        acceptance=Acceptance(rates=rates, name=name) if rates else from_lengths(found["lengths"], name), **found
    )


@frozen
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


def _rank_preset(row: Any) -> RankPreset:
    """A preset of ranks from its row in the file."""
    beside = {"success": record.listed(record.listed(record.number(0.0, 1.0), least=1), least=1)}
    found, rates = record.split(RankPreset, row, beside=beside, given=("ranks",), required=beside)
    return RankPreset(ranks=from_success_rates(rates["success"], found["name"]), **found)


#: The presets of the file.
ROWS = record.keyed(presets=record.listed(_preset), ranks=record.listed(_rank_preset))
_READ = record.of_file(FILE.name, ROWS, data.read_yaml(FILE))
#: Preset name -> preset, in the order of the file.
PRESETS: dict[str, Preset] = {preset.name: preset for preset in _READ["presets"]}
RANKS: dict[str, RankPreset] = {preset.name: preset for preset in _READ["ranks"]}
