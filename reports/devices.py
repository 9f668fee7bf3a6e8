"""The devices that share a model's layers, as a table, and what each limits."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Column, Page, Row, Table, left


def devices(answer: dict[str, Any]) -> Page:
    """Returns the table of the devices of a split; nothing for devices with even shares."""
    listed = answer.get("devices", ())
    if not listed:
        return ()
    titles = ("Layers", "Memory", "Budget", "Free", "Prefill", "Decode step", "Share")
    decode_s = sum(one["decode_s"] or 0.0 for one in listed)
    rows = tuple(Row(cells=_cells(one, decode_s, has_head=one is listed[-1])) for one in listed)
    columns = (left("Device"), *(Column(title=title) for title in titles))
    return (Table(title="Devices, in the order of their layers", note=_note(listed), columns=columns, rows=rows),)


def _cells(one: dict[str, Any], decode_s: float, *, has_head: bool) -> tuple[str, ...]:
    memory, first, last = one["memory"], one["first_layer"], one["first_layer"] + one["layers"] - 1
    held = [f"{first}-{last}"] * (last > first) + [str(first)] * (last == first) + ["head"] * has_head
    free = memory["budget_bytes"] - memory["total_bytes"]
    return (
        one["name"],
        ", ".join(held),
        fmt.memory(memory["total_bytes"]),
        fmt.memory(memory["budget_bytes"]),
        fmt.memory(free) if free >= 0 else f"-{fmt.memory(-free)}",
        fmt.duration(one["prefill_s"]),
        fmt.duration(one["decode_s"]) if one["decode_s"] else fmt.DASH,
        fmt.percent(one["decode_s"] / decode_s) if decode_s else fmt.DASH,
    )


def _note(listed: list[dict[str, Any]]) -> str:
    """Which device limits the memory, and which the time."""
    room = [one["memory"]["budget_bytes"] - one["memory"]["total_bytes"] for one in listed]
    seconds = [one["decode_s"] or one["prefill_s"] for one in listed]
    tightest, slowest = (listed[of.index(limit)]["name"] for of, limit in ((room, min(room)), (seconds, max(seconds))))
    machines = len({one["machine"] for one in listed})
    apart = f"; {machines} machines over the network" if machines > 1 else ""
    return f"{tightest} limits the memory, {slowest} takes most of a step; a token passes through all of them{apart}"
