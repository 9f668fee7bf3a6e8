"""Memory against capacity: a bar, its legend, and what would fit."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Bar, Column, Facts, Part, Row, Segment, Table, left, right

#: (field, label, glyph, colour).
PARTS = (
    ("weights_bytes", "weights", "█", "blue"),
    ("kv_cache_bytes", "KV cache", "▓", "cyan"),
    ("activations_bytes", "activations", "▒", "yellow"),
    ("framework_bytes", "framework", "░", "magenta"),
)
FREE = "·"
#: How max_concurrent_requests counts.
_ADMITTED = "prefilled one after another: KV budget / KV cache of one"
#: What stands for limits where tensors are placed anew for every request.
_PLACED = (("Limits", "none of its own: another batch or length gets a placement of its own (llmviewer sweep)"),)
#: The search for what fits ends here; beyond it nothing but state, which does not grow, is kept.
UNLIMITED = 2**32
#: The part that takes most -> what makes it smaller.
SMALLER = {
    "weights_bytes": "fewer bits (--quantization w4a16), a larger chip or several of them, or the host "
    "(--offload zero-inference)",
    "kv_cache_bytes": "a smaller batch, a shorter context or a quantized KV cache (--kv-cache-dtype fp8)",
    "activations_bytes": "prefill fewer tokens at once (--max-num-batched-tokens 8192) or a smaller batch",
    "framework_bytes": "a larger chip",
}


def memory_parts(
    memory: dict[str, Any], workload: dict[str, Any], cache: str, *, placed: bool = False
) -> tuple[Part, ...]:
    """Bar, legend and limits of a memory object.

    cache: what the KV cache holds, in words.  placed: where tensors lie was found for this batch and length.
    """
    capacity, budget, total = (memory[f"{name}_bytes"] for name in ("capacity", "budget", "total"))
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    allowed = f"{fmt.memory(budget)} allowed ({fmt.percent(budget / capacity)} of {fmt.capacity(capacity)})"
    bar = Bar(
        title=f"Memory {fmt.memory(total)}, {allowed}: {verdict}",
        segments=tuple(
            Segment(label=label, value=memory[field], glyph=glyph, style=style) for field, label, glyph, style in PARTS
        ),
        scale=max(capacity, total),
        mark=budget,
        mark_label=f"allowed {fmt.memory(budget)}",
    )
    limits = _PLACED if placed else _limits(memory, workload)
    return (bar, _legend(memory), *_elsewhere(memory), Facts(lines=(("KV cache", cache or "none"), *limits)))


def _elsewhere(memory: dict[str, Any]) -> tuple[Facts, ...]:
    """What is offloaded."""
    room = memory["host_capacity_bytes"]
    host = fmt.memory(memory["host_bytes"]) + (f" of {fmt.memory(room)}" if room is not None else "")
    places = (
        ("On the host", memory["host_bytes"], f"{host} ({memory['host']})"),
        ("On its disk", memory["disk_bytes"], f"{fmt.memory(memory['disk_bytes'])} ({memory['disk']})"),
    )
    lines = tuple((name, text) for name, size, text in places if size)
    return (Facts(lines=lines),) if lines else ()


def shortage(memory: dict[str, Any]) -> str:
    """What is missing and what would help, for a workload that does not fit."""
    there, room = memory["host_bytes"], memory["host_capacity_bytes"]
    if memory["total_bytes"] <= memory["budget_bytes"] and room is not None and there > room:
        return f"does not fit: {fmt.memory(there)} on the host, {fmt.memory(room)} there; use its disk (to=disk)"
    most = max(SMALLER, key=lambda field: memory[field])
    label = next(label for field, label, _, _ in PARTS if field == most)
    return (
        f"does not fit: {fmt.memory(memory['total_bytes'])} needed, {fmt.memory(memory['budget_bytes'])} allowed; "
        f"{label} take{'s' if label == 'KV cache' else ''} most: {SMALLER[most]}"
    )


def _legend(memory: dict[str, Any]) -> Table:
    """Sizes and shares of the capacity."""
    capacity, budget, total = (memory[f"{name}_bytes"] for name in ("capacity", "budget", "total"))
    framework = "assumed" if memory["framework_bytes"] else "unknown for this maker, left out"
    empty = memory["kv_cache_waste_bytes"]
    notes = {
        "kv_cache_bytes": f"{fmt.memory(empty)} of it set aside and empty" if empty else "",
        "activations_bytes": "the most alive at once",
        "framework_bytes": framework,
    }
    entries = [(glyph, label, memory[field], notes.get(field, "")) for field, label, glyph, _ in PARTS]
    entries.append(("", "total", total, ""))
    if memory["fits"]:
        entries.append((FREE, "free", capacity - total, f"{fmt.memory(budget - total)} of it allowed"))
    else:
        entries.append(("", "too much", total - budget, f"needs {fmt.times(total / budget)} what is allowed"))
    rows = (
        Row(cells=(glyph, label, fmt.memory(size), fmt.share(size / capacity), note))
        for glyph, label, size, note in entries
    )
    columns = (
        Column(title="", align=Align.LEFT, visual=True),
        left("Part"),
        right("Size"),
        right("of capacity"),
        left("What", rank=1),
    )
    return Table(columns=columns, rows=tuple(rows))


def _limits(memory: dict[str, Any], workload: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The largest batch and the longest context within the budget, and how many requests at once."""
    context = workload["input_len"] + workload["output_len"]
    batch, longest = memory["max_batch_size"], memory["max_context_len"]
    at_once = f"{_limit(memory['max_concurrent_requests'], ' requests')} of {fmt.whole(context)} tokens, {_ADMITTED}"
    return (
        ("Largest batch", f"{_limit(batch)} at {fmt.whole(context)} tokens a sequence"),
        ("Longest context", f"{_limit(longest, ' tokens')} at batch {fmt.whole(workload['batch_size'])}"),
        ("At once", at_once),
        ("KV budget", _budget(memory)),
    )


def _budget(memory: dict[str, Any]) -> str:
    """What the cache may take beside this batch's activations; where another rule is in force, vLLM's as well."""
    budget, of_total = memory["kv_cache_budget_bytes"], memory["kv_cache_budget_of_total_bytes"]
    if memory["kv_cache_fraction_of_free"] is None:
        return f"{fmt.memory(budget)}, what weights, activations and framework leave of what is allowed"
    share = fmt.percent(memory["kv_cache_fraction_of_free"])
    return f"{fmt.memory(budget)}, {share} of the free memory; by a fraction of the whole (vLLM) {fmt.memory(of_total)}"


def _limit(value: int, unit: str = "") -> str:
    if not value:
        return "none fits"
    return "no limit" if value >= UNLIMITED else f"{fmt.whole(value)}{unit}"
