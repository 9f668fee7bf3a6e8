"""Options of a simulated load on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmviewer.cli.options import with_declared
from llmviewer.core.errors import UserError, quoted
from llmviewer.simulation.options import LOAD, SOURCES


def loaded(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a load, empty if none of them says when requests arrive, and all others.  Raises UserError."""
    load = {name: value for name, value in options.items() if name in LOAD}
    others = {name: value for name, value in options.items() if name not in LOAD}
    if any(load.get(name) for name in (*SOURCES, "find_rate")):
        return load, others
    for name, value in load.items():
        if value is not None:
            raise UserError(f"{name} is {quoted(value)} without a load; give one of {', '.join(SOURCES)}")
    return {}, others


with_load_options = with_declared(LOAD)
