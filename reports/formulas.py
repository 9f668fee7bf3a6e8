"""Formulas of an operator in words: FLOP and byte counts (docs/reference/conventions.md), and terms of its time."""

from __future__ import annotations

from typing import Any

from llmviewer.core.kinds import Kind
from llmviewer.reports import format as fmt

#: Kind -> how its FLOP are counted.
FLOPS = {kind.value: kind.facts.flops for kind in Kind}
BYTES = "weights once per pass, activations read once and written once, keys and values of KV heads"


def seconds(operator: dict[str, Any], efficiency: str) -> str:
    """Returns the time of one layer's operator as a sum: `max(memory 21.9 µs, compute 3.1 µs) = 21.9 µs`."""
    parts = dict(operator["time_by_resource_s"])
    fixed = parts.pop("overhead", None)
    listed = ", ".join(f"{name} {fmt.duration(spent)}" for name, spent in sorted(parts.items(), key=lambda p: -p[1]))
    largest = "max" if efficiency == "ideal" else "smooth max"
    overhead = f" + overhead {fmt.duration(fixed)}" if fixed else ""
    return f"{f'{largest}({listed})' if len(parts) > 1 else listed}{overhead} = {fmt.duration(operator['time_s'])}"
