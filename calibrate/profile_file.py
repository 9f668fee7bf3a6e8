"""Text of a profile: a YAML header document, then one document per fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from llmviewer.core.errors import UserError, printable
from llmviewer.hardware.chip import Chip
from llmviewer.timing.calibrated import check_families, check_fit
from llmviewer.timing.profile import SCHEMA, Fit, Profile


def kept_fits(extended: Profile | None, chip: Chip, new: Collection[Fit]) -> list[Fit]:
    """Fits of a profile under other keys than the new ones.  Raises UserError for another chip's or invalid fits."""
    if extended is None:
        return []
    where = f"'{printable(extended.path)}'"
    if extended.chip != chip.name:
        raise UserError(f"{where} has fits of {extended.chip}; rows of {chip.name} cannot extend it")
    keys = {fit.key for fit in new}
    kept = [extended.fit(key) for key in extended.texts if key not in keys]
    check_families(extended)
    for fit in kept:
        check_fit(fit, extended)
    return kept


def merged_provenance(old: Mapping[str, Any], new: Mapping[str, Any], fits: Sequence[Fit]) -> dict[str, Any]:
    """Provenance of a profile that was extended: origins and sources of both, and the rows of all its fits."""
    origins = [found["origin"] for found in (old, new) if found.get("origin")]
    rows = {"fitted": int(sum(fit.rows.get("fitted", 0) for fit in fits))}
    unstable = sum(found.get("rows", {}).get("unstable_among_them", 0) for found in (old, new))
    measured = {**old.get("measured", {}), **new.get("measured", {})}
    return {
        **({"origin": "; ".join(dict.fromkeys(origins))} if origins else {}),
        **{name: value for name, value in {**old, **new}.items() if name not in ("origin", "measured")},
        "sources": [*old.get("sources", []), *new.get("sources", [])],
        "rows": {**rows, "unstable_among_them": unstable},
        "left_out": dict(Counter(old.get("left_out", {})) + Counter(new.get("left_out", {}))),
        **({"measured": measured} if measured else {}),
    }


def text_of(
    chip: Chip, title: str, provenance: Mapping[str, Any], fits: Sequence[Fit], power: Mapping[str, float] | None = None
) -> str:
    """Text of the whole file.  power: see `Profile`."""
    header = [f"schema: {SCHEMA}", f"chip: {chip.name}", f"generation: {json.dumps(chip.generation)}"]
    header += [f"title: {json.dumps(title)}", f"fits: {len(fits)}"]
    header += [*([f"power: {_flow(power)}"] if power else []), "provenance:"]
    header += [f"  {name}: {json.dumps(value)}" for name, value in provenance.items()]
    return "\n---\n".join(["\n".join(header), *map(_document, fits)]) + "\n"


def _document(fit: Fit) -> str:
    lines = [f"fit: {fit.key}", f"constants: {_flow(fit.constants)}", f"rows: {_flow(fit.rows)}"]
    lines += [f"range: {_flow({name: [*ends] for name, ends in fit.range.items()})}"]
    for name, table in (("residuals", fit.residuals), ("error", fit.error), ("against", fit.against)):
        lines += [f"{name}:"] if table or name != "against" else []
        lines += [f"  {regime}: {_flow(value)}" for regime, value in table.items()]
    return "\n".join(lines)


def _flow(value: Any) -> str:
    """A value as one line of YAML, numbers with at most six digits."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
