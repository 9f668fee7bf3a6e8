"""Compare every Hub id of model_configs/ with its own config.json: `python -m tests.alias_configs [FOLDER]`.

The configs are those in the local Hugging Face cache, and in FOLDER as ORGANISATION/NAME/config.json,
ORGANISATION--NAME/config.json or ORGANISATION--NAME_config.json.  It prints what differs, and how many ids were never
compared; 1 if anything differs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.models import hub
from llmviewer.models.aliases import entries
from llmviewer.models.card import Card, read
from llmviewer.result.describe import model_object


def own_config(hub_id: str, folder: Path | None) -> Path | None:
    """The config.json of a Hub id that can be read on this machine; None if there is none."""
    flat = hub_id.replace("/", "--")
    names = (f"{hub_id}/config.json", f"{flat}/config.json", f"{flat}_config.json")
    cached = hub.snapshot(hub_id)
    found = [*([cached / "config.json"] if cached else []), *([folder / name for name in names] if folder else [])]
    return next((path for path in found if path.exists()), None)


def figures(card: Card) -> dict[str, Any]:
    """The figures of a model that a field of its config may change."""
    model = models.build(card)
    stored = sum(t.elements * t.dtype.bytes * n for t, n in model.graph(decode(1.0, 0.0)).stored_weights())
    left_out = ("name", "architecture", "dtype")
    return {"weights_bytes": stored} | {k: v for k, v in model_object(model).items() if k not in left_out}


def differences(hub_id: str, path: Path) -> dict[str, tuple[Any, Any]]:
    """Figure -> (ours, the one of the Hub id's own config) where they differ."""
    ours, own = figures(read(hub_id)), figures(read(str(path)))
    return {name: (ours[name], value) for name, value in own.items() if ours[name] != value}


def compared(folder: Path | None) -> Mapping[str, dict[str, tuple[Any, Any]] | str]:
    """Hub id -> its differences, or the error of its config; ids without a config at hand are left out."""
    found: dict[str, dict[str, tuple[Any, Any]] | str] = {}
    for alias in entries().values():
        path = own_config(alias.name, folder) if alias.is_hub_id else None
        if path is not None:
            try:
                found[alias.name] = differences(alias.name, path)
            except UserError as error:
                found[alias.name] = str(error)
    return found


def main(arguments: list[str]) -> int:
    """Print the comparison; 1 if a Hub id differs from its own config."""
    found = compared(Path(arguments[0]) if arguments else None)
    for hub_id, result in sorted(found.items()):
        if result:
            sys.stdout.write(f"{hub_id}: {result}\n")
    pages = " ".join(read(stem).source.lower() for stem in data.stems("model_configs"))
    ids = [alias for alias in entries().values() if alias.is_hub_id]
    never = sorted(a.name for a in ids if not a.source and f"/{a.repository}/".lower() not in pages)
    counts = f"{len(ids)} Hub ids: {len(found)} compared here, {len(never)} never compared"
    sys.stdout.write(f"{counts}: {', '.join(never)}\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
