"""Memory against capacity: a bar, its legend, and the limits of batch size, context and concurrency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Align, Bar, Column, Facts, Part, Row, Segment, Table, left, right

#: (field, label, glyph, colour).
PARTS = (
    ("weights_bytes", "weights", "█", "blue"),
    ("kv_cache_bytes", "KV cache", "▓", "cyan"),
    ("activations_bytes", "activations", "▒", "yellow"),
    ("framework_bytes", "framework", "░", "magenta"),
    ("cuda_graphs_bytes", "CUDA graphs", "▚", "green"),
)
FREE = "·"
#: Definition of max_concurrent_requests.
_CONCURRENCY = "KV budget / KV cache per request"
#: Shown instead of limits if every request gets a placement of its own.
_PLACED = (("Limits", "not shown: each batch size and length has a placement of its own (use llmviewer sweep)"),)
#: End of the search for limits; only a recurrent state, which does not grow, reaches it.
UNLIMITED = 2**32
#: Name of the engine where kernels run without one.
NO_ENGINE = "kernels"
#: Largest part -> how to reduce it.
REMEDIES = {
    "weights_bytes": "quantize them (--quantization w4a16), use a larger chip or several, or offload to the host "
    "(--offload zero-inference)",
    "kv_cache_bytes": "use a smaller batch, a shorter context or a quantized KV cache (--kv-cache-dtype fp8)",
    "activations_bytes": "prefill fewer tokens per pass (--max-num-batched-tokens 8192), use a smaller batch, or let "
    "the engine run fewer sequences (--max-num-seqs 256)",
    "framework_bytes": "use a larger chip",
    "cuda_graphs_bytes": "run without CUDA graphs (--enforce-eager)",
}
#: The same where the engine has options of its own for it.
REMEDIES_OF = {
    "llama.cpp": {
        "weights_bytes": "leave layers to the host (-ngl auto), or quantize them (-q q4_k_m)",
        "kv_cache_bytes": "use a shorter context (-c) or a quantized KV cache (-fa on -ctk q8_0 -ctv q8_0)",
        "activations_bytes": "use a smaller micro-batch (-ub 256), or no scores in memory (-fa on)",
    }
}


def memory_parts(
    memory: dict[str, Any], workload: dict[str, Any], cache: str, *, placed: bool = False
) -> tuple[Part, ...]:
    """Returns bar, legend and limits of a memory object.

    cache: contents of the KV cache in words.  placed: the placement of tensors was searched for this request.
    """
    capacity, budget, total = (memory[f"{name}_bytes"] for name in ("capacity", "budget", "total"))
    verdict = "at the edge" if memory["at_edge"] else "fits" if memory["fits"] else "DOES NOT FIT"
    limit = f"{fmt.memory(budget)} ({fmt.percent(budget / capacity)} of {fmt.capacity(capacity)})"
    bar = Bar(
        title=f"Memory {fmt.memory(total)}, budget {limit}: {verdict}",
        segments=tuple(
            Segment(label=label, value=memory[field], glyph=glyph, style=style) for field, label, glyph, style in PARTS
        ),
        scale=max(capacity, total),
        mark=budget,
        mark_label=f"budget {fmt.memory(budget)}",
    )
    limits = _PLACED if placed else _limits(memory, workload)
    return (bar, _legend(memory), *_offloaded(memory), Facts(lines=(("KV cache", cache or "none"), *limits)))


def _offloaded(memory: dict[str, Any]) -> tuple[Facts, ...]:
    """Returns the offloaded bytes and where they are stored."""
    capacity = memory["host_capacity_bytes"]
    host = fmt.memory(memory["host_bytes"]) + (f" of {fmt.memory(capacity)}" if capacity is not None else "")
    places = (
        ("Host memory", memory["host_bytes"], f"{host} ({memory['host']})"),
        ("Host disk", memory["disk_bytes"], f"{fmt.memory(memory['disk_bytes'])} ({memory['disk']})"),
    )
    lines = tuple((name, text) for name, size, text in places if size)
    return (Facts(lines=lines),) if lines else ()


def doubt(memory: dict[str, Any]) -> str:
    """Returns the doubt about the total where it decides, else an empty string."""
    if not memory["at_edge"]:
        return ""
    return f", ± {fmt.memory(memory['uncertainty_bytes'])} as logs of the engine spread"


def shortage(memory: dict[str, Any]) -> str:
    """Returns how much memory is missing and how to reduce it, for a workload that does not fit."""
    host, capacity = memory["host_bytes"], memory["host_capacity_bytes"]
    if memory["total_bytes"] <= memory["budget_bytes"] and capacity is not None and host > capacity:
        return (
            f"does not fit: {fmt.memory(host)} of host memory needed, the host has {fmt.memory(capacity)}; "
            "offload to its disk (to=disk)"
        )
    largest = max(REMEDIES, key=lambda field: memory[field])
    label = next(label for field, label, _, _ in PARTS if field == largest)
    remedy = REMEDIES_OF.get(memory["engine"], {}).get(largest, REMEDIES[largest])
    return (
        f"{'at the edge' if memory['at_edge'] else 'does not fit'}: {fmt.memory(memory['total_bytes'])} needed, "
        f"budget {fmt.memory(memory['budget_bytes'])}{doubt(memory)}; "
        f"largest part: {label}; {remedy}"
    )


def beside_budget(memory: dict[str, Any]) -> list[str]:
    """Returns a warning if what an engine takes beside its budget does not fit the capacity."""
    beside = sum(item["bytes"] for item in memory["items"] if not item["within"])
    if memory["budget_bytes"] + beside <= memory["capacity_bytes"]:
        return []
    return [
        f"the budget leaves no room for {fmt.memory(beside)} of CUDA graphs beside it: lower --gpu-memory-utilization "
        "or use --enforce-eager"
    ]


def _legend(memory: dict[str, Any]) -> Table:
    """Returns the parts and the items in them with their sizes, shares of the capacity, and basis."""
    capacity, budget, total = (memory[f"{name}_bytes"] for name in ("capacity", "budget", "total"))
    entries = [entry for part in PARTS for entry in _part(memory, *part[:3])]
    entries.append(("", "total", total, "", ""))
    if memory["fits"]:
        entries.append((FREE, "free", capacity - total, "", f"{fmt.memory(budget - total)} of it within the budget"))
    else:
        entries.append(("", "over budget", total - budget, "", f"total is {fmt.times(total / budget)} the budget"))
    beside = [item for item in memory["items"] if not item["within"]]
    entries += [("", item["name"], item["bytes"], item["basis"], item["note"]) for item in beside]
    rows = (
        Row(cells=(glyph, label, fmt.memory(size), fmt.share(size / capacity), basis, note))
        for glyph, label, size, basis, note in entries
    )
    columns = (
        Column(title="", align=Align.LEFT, visual=True),
        left("Part"),
        right("Size"),
        right("% of capacity"),
        left("Basis", rank=1),
        left("Note", rank=2),
    )
    return Table(columns=columns, rows=tuple(rows))


def _part(memory: dict[str, Any], field: str, label: str, glyph: str) -> Iterator[tuple[str, str, float, str, str]]:
    """Yields the rows of a part: one, and one per item if it has several."""
    items, size = [item for item in memory["items"] if item["within"] == field], memory[field]
    if not size and field == "cuda_graphs_bytes":
        return
    if not size and field == "framework_bytes":
        yield glyph, label, size, "", "unknown for this vendor, not counted"
        return
    unused = memory["kv_cache_waste_bytes"]
    note = f"{fmt.memory(unused)} of it allocated but unused" if unused and field == "kv_cache_bytes" else ""
    if len(items) == 1:
        note = note or items[0]["note"]
    yield glyph, label, size, items[0]["basis"] if len(items) == 1 else "", note
    if len(items) > 1:
        for item in items:
            yield "", f"  {item['name']}", item["bytes"], item["basis"], item["note"]


def _limits(memory: dict[str, Any], workload: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the maximum batch size, context and concurrency within the budget, and the KV budget."""
    context = workload["input_len"] + workload["output_len"]
    batch, longest = memory["max_batch_size"], memory["max_context_len"]
    cached = memory["max_concurrent_requests"] is not None
    concurrent = _limit(memory["max_concurrent_requests"], f"requests of {fmt.whole(context)} tokens")
    batch_size = fmt.whole(workload["batch_size"])
    return (
        ("Max batch size", _limit(batch, f"sequences of {fmt.whole(context)} tokens")),
        ("Max context", _limit(longest, f"tokens at batch size {batch_size}") + beyond_model(memory)),
        ("Max concurrency", f"{concurrent} ({_CONCURRENCY})" if cached else "as the batch size: nothing is cached"),
        ("Limits for", assumed_limits(memory)),
        ("KV budget", _budget(memory)),
        *_engine_figures(memory),
    )


def _engine_figures(memory: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns what the engine reports at start-up, where its memory is known."""
    tokens, concurrency, longest = (memory[name] for name in ("kv_cache_tokens", "max_concurrency", "max_model_len"))
    if tokens is None:
        of_engine = memory["uncertainty_bytes"] is not None
        return (("KV tokens", f"not known: {memory['kv_cache_tokens_unknown']}"),) if of_engine else ()
    served = (
        f"; {fmt.times(concurrency)} its longest context of {fmt.whole(longest)}" if concurrency is not None else ""
    )
    return (("KV tokens", f"{fmt.whole(tokens)} at the engine's start-up{served}"),)


def beyond_model(memory: dict[str, Any]) -> str:
    """Returns a remark where memory holds a longer context than the model was built for, else an empty string."""
    known = memory["model_max_context_len"]
    return f" (the model was built for {fmt.whole(known)})" if known and memory["max_context_len"] > known else ""


def assumed_limits(memory: dict[str, Any]) -> str:
    """Returns what the largest batch and context assume: tokens of a prefill pass, engine, share of the memory."""
    budget, engine = memory["token_budget"], memory["engine"]
    tokens = "prefill of all prompts together" if budget is None else f"prefill of ≤ {fmt.whole(budget)} tokens a pass"
    named = "no engine" if engine == NO_ENGINE else f"engine {engine}"
    left = memory["capacity_bytes"] - memory["budget_bytes"]
    if memory["kv_cache_fraction_of_free"] is None and memory["gpu_memory_utilization"] == 1.0 and left > 0.0:
        return f"{tokens}, {named}, all of memory but {fmt.memory(left)}"
    if memory["kv_cache_fraction_of_free"] is None:
        return f"{tokens}, {named}, {fmt.percent(memory['gpu_memory_utilization'])} of memory"
    return f"{tokens}, {named}, KV cache in {fmt.percent(memory['kv_cache_fraction_of_free'])} of free memory"


def _budget(memory: dict[str, Any]) -> str:
    """Returns the memory available to the KV cache; with another rule than vLLM's, the budget of both rules."""
    budget, of_total = memory["kv_cache_budget_bytes"], memory["kv_cache_budget_of_total_bytes"]
    if memory["kv_cache_fraction_of_free"] is None:
        others = "weights - activations - framework" + " - CUDA graphs" * bool(memory["cuda_graphs_bytes"])
        return f"{fmt.memory(budget)} = memory budget - {others}"
    share = fmt.percent(memory["kv_cache_fraction_of_free"])
    return f"{fmt.memory(budget)} = {share} of free memory; as a fraction of total memory (vLLM) {fmt.memory(of_total)}"


def _limit(value: int | None, unit: str) -> str:
    if not value:
        return "none fits"
    return "no limit" if value >= UNLIMITED else f"{fmt.whole(value)} {unit}"
