"""Batching in words: running and queued sequences, contents of a step, and what limits throughput."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts

#: Batching in which all sequences start together; in the others one starts when another ends.
STATIC = "static"
#: First token of a static batch where an engine serves it, and the option by which requests come one by one.
CONTINUOUS = "(as requests come: --batching continuous)"
WHOLE_BATCH = f"prefill of the whole batch {CONTINUOUS}"
#: Prefill of a pipeline whose time is a bound over all ways to cut prompts into chunks.
ANY_CHUNKS = "whole batch in chunks of any size"
#: Bound of disaggregated serving -> text.
BOUNDS = {
    "prefill": "prefill instances (prompts queue for them)",
    "link": "links (KV cache transfers queue for them)",
    "decode": "memory of decode instances (requests queue for a slot)",
    "users": "the number of users (no queue)",
}


def is_steady_state(answer: dict[str, Any]) -> bool:
    """Whether each sequence starts when another ends."""
    return bool(answer["batching"] != STATIC)


def kernels_alone(answer: dict[str, Any]) -> bool:
    """Whether no engine is stated."""
    return bool(answer["efficiency"].get("engine", "kernels") == "kernels")


def is_whole_batch(answer: dict[str, Any]) -> bool:
    """Whether several sequences start together, which a server does only with requests that come together."""
    return not is_steady_state(answer) and bool(answer["workload"]["batch_size"] > 1)


def sequences_text(answer: dict[str, Any]) -> str:
    """Returns how many sequences one replica decodes together, in words."""
    serving = answer["serving"]
    count = serving.get("running", max(serving.get("decode_batch", 0), 1)) if is_steady_state(answer) else None
    count = answer["workload"]["batch_size"] if count is None else count
    return "1 sequence" if count == 1 else f"{_count(count)} sequences"


def answer_tokens(answer: dict[str, Any]) -> int:
    """Returns the output tokens for which a sequence occupies its slot."""
    return int(answer["serving"].get("longest_output_tokens", answer["workload"]["output_len"]))


def allocated_output_tokens(answer: dict[str, Any]) -> int:
    """Returns the output tokens per sequence for which cache memory is allocated."""
    return int(answer["serving"].get("room_output_tokens", answer_tokens(answer)))


def prefill_text(answer: dict[str, Any], budget: float) -> str:
    """Returns the prompts of the prefill stage and how they are scheduled."""
    prefill, serving = answer["stages"]["prefill"], answer["serving"]
    prompts = serving.get("prompts_together", 1)
    several = "1 prompt" if prompts == 1 else f"{_count(prompts)} prompts"
    tokens = (
        f"{several if is_steady_state(answer) else sequences_text(answer)} × {fmt.whole(prefill['new_tokens'])} tokens"
    )
    cached = f" after {fmt.whole(prefill['cached_tokens'])} cached ones" if prefill["cached_tokens"] else ""
    return f"{tokens}{cached}, {_scheduling(answer, budget)}"


def _scheduling(answer: dict[str, Any], budget: float) -> str:
    serving = answer["serving"]
    if "chunks" in serving:
        steps = "1 step" if serving["chunks"] == 1 else f"{_count(serving['chunks'])} steps"
        return f"in {steps} that also decode {_count(serving['decodes_in_mixed_step'])} sequences"
    if answer["batching"] == "disaggregated":
        return "on a prefill instance"
    if answer["batching"] == "continuous":
        return "between decode steps of the other users' sequences"
    return static_prefill_text(answer, budget)


def static_prefill_text(answer: dict[str, Any], budget: float) -> str:
    """Returns how the prompts of a static batch are prefilled."""
    if answer["efficiency"].get("bounds_all_chunks"):
        return ANY_CHUNKS
    if (answer["generation"] or {}).get("cache", "blocks") != "blocks":
        return "whole batch, prompts and answers, in one pass"
    if answer["workload"]["batch_size"] * answer["stages"]["prefill"]["new_tokens"] > budget:
        return f"whole batch in passes of at most {fmt.whole(budget)} tokens"
    parts = answer["parallelism"]["microbatches"]
    return f"whole batch in {parts} micro-batches" if parts > 1 else "whole batch in one pass"


def ttft_parts(answer: dict[str, Any], budget: float) -> str:
    """Returns the parts of TTFT in words."""
    parts = {
        "continuous": "queueing + what its prompt meets + own prefill",
        "chunked": "queueing + what its prompt meets + mixed steps of the own prompt",
        "disaggregated": "queueing + own prefill",
    }
    hint = f" {CONTINUOUS}" if is_whole_batch(answer) and not kernels_alone(answer) else ""
    text = parts.get(answer["batching"], f"prefill of the {static_prefill_text(answer, budget)}{hint}")
    images = "vision tower + " if "images" in answer else ""
    return f"{images}{text}" if kernels_alone(answer) else f"host + {text}"


def tpot_extras(answer: dict[str, Any]) -> str:
    """Returns what TPOT includes in addition to decode steps."""
    extras = {
        "continuous": ", including prefills of others in between",
        "chunked": ", mixed and decode-only",
        "disaggregated": ", including the KV cache transfer and the wait for it",
    }
    return extras.get(answer["batching"], "")


def serving(answer: dict[str, Any]) -> tuple[Facts, ...]:
    """Returns the section of a serving object; empty for a plain static batch."""
    found = answer["serving"]
    if not found:
        return ()
    lines = _LINES.get(answer["batching"], _generic)(found, answer["workload"]["batch_size"])
    return (Facts(title=f"Serving: {answer['batching']}", lines=tuple(lines)),)


def _static(found: dict[str, Any], batch: int) -> list[tuple[str, ...]]:
    longest = fmt.whole(found["longest_output_tokens"])
    empty = fmt.share(found["empty_slots"])
    return [("Batch", f"runs until its longest output of {longest} tokens ends; {empty} of decode slots are idle")]


def _continuous(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    if "chunks" in found:
        return _chunked(found, users)
    others = f"{fmt.duration(found['others_prefill_s'])} of other requests' prefill during one request"
    return [_running(found, users), ("Interference", others), *_burst(found)]


def _burst(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what the steady state does not have."""
    if found["running"] <= 1:
        return []
    burst = f"if all begin at once {fmt.duration(found['burst_ttft_s'])} in the mean"
    return [("First tokens", f"those of a steady state of answers that vary in length; {burst}")]


def _chunked(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    chunk, decodes = _count(found["chunk_tokens"]), _count(found["decodes_in_mixed_step"])
    steps = found["chunks"]
    per_prompt = "1 step per prompt" if steps == 1 else f"{_count(steps)} steps per prompt"
    mixed = f"{fmt.duration(found['mixed_step_s'])}: {chunk} prompt tokens + {decodes} decodes; {per_prompt}"
    pure = f"{fmt.duration(found['decode_step_s'])}: decodes only; {fmt.share(found['mixed_share'])} of steps are mixed"
    if found["mixed_share"] == 1:
        pure = "none: every step is mixed"
    budget = f"{fmt.whole(found['token_budget'])} tokens per step"
    lines = [_running(found, users), ("Token budget", budget), ("Mixed step", mixed), ("Decode step", pure)]
    return [*lines, *_burst(found)]


def _disaggregated(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    rate = f"{fmt.per_second(found['requests_per_s'])} requests/s"
    instances = f"{fmt.whole(found['prefill_instances'])} prefill, {fmt.whole(found['decode_instances'])} decode"
    busy = f"{fmt.share(found['prefill_busy'])} of the time"
    mean, slots = _count(found["decode_batch_mean"]), fmt.whole(found["decode_places"])
    decoding = f"{_count(found['decode_batch'])} sequences per full instance ({mean} on average), {slots} slots"
    moved = (
        f"{fmt.duration(found['transfer_s'])}: {fmt.traffic(found['transfer_bytes'])} per device at "
        f"{fmt.bandwidth(found['link_bytes_per_s'])}; links busy {fmt.share(found['link_busy'])} of the time"
    )
    waits = {"before the first token": found["queue_s"], "after the first token": found["handover_s"]}
    parts = [f"{fmt.duration(wait)} {where}" for where, wait in waits.items() if wait]
    queue = [("Queue", f"{', '.join(parts)}, per request")] if parts else []
    return [
        ("Instances", f"{instances}; {fmt.whole(users)} users"),
        ("Throughput", f"{rate}, limited by {BOUNDS[found['bound']]}"),
        ("Prefill", f"busy {busy}"),
        ("Transfer", moved),
        ("Decode", f"{decoding}; memory figures are for one instance"),
        *queue,
    ]


def _generic(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    """Returns the fields of a batching without texts of its own, by name."""
    fields = [
        (name.replace("_", " "), fact if isinstance(fact, str) else f"{fact:.4g}") for name, fact in found.items()
    ]
    return [("Users", fmt.whole(users)), *fields]


def _running(found: dict[str, Any], users: int) -> tuple[str, str]:
    queue = f"; {fmt.duration(found['queue_s'])} queueing" if found["queue_s"] else "; no queue"
    return ("Running", f"{fmt.whole(found['running'])} of {fmt.whole(users)} users{queue}")


def _count(value: float) -> str:
    """Formats a mean number of items, which may be fractional."""
    return fmt.digits(float(value))


_LINES = {STATIC: _static, "continuous": _continuous, "chunked": _chunked, "disaggregated": _disaggregated}
