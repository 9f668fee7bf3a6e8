"""How sequences share the machine, in words: who runs, who waits, what a step holds, what bounds the throughput."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts

#: The way of batching in which all sequences begin together; in others one begins when another ends.
STATIC = "static"
#: What bounds disaggregated serving, in words.
BOUNDS = {
    "prefill": "prefill instances: prompts wait for them",
    "link": "links: caches wait for them",
    "decode": "room on decode instances: prompts wait for a place",
    "users": "nothing but its users: nobody waits",
}


def is_steady_state(answer: dict[str, Any]) -> bool:
    """Whether each sequence begins when another ends."""
    return bool(answer["batching"] != STATIC)


def sequences_text(answer: dict[str, Any]) -> str:
    """Those that decode together on a machine, in words."""
    serving = answer["serving"]
    count = serving.get("running", max(serving.get("decode_batch", 0), 1)) if is_steady_state(answer) else None
    count = answer["workload"]["batch_size"] if count is None else count
    return "1 sequence" if count == 1 else f"{_count(count)} sequences"


def answer_tokens(answer: dict[str, Any]) -> int:
    """Output tokens for which a sequence holds its place."""
    return int(answer["serving"].get("longest_output_tokens", answer["workload"]["output_len"]))


def allocated_output_tokens(answer: dict[str, Any]) -> int:
    """Output tokens for which the cache has room, counted for every sequence."""
    return int(answer["serving"].get("room_output_tokens", answer_tokens(answer)))


def prefill_text(answer: dict[str, Any], budget: float) -> str:
    """Which prompts the prefill stage is of, and what is done beside them."""
    prefill, serving = answer["stages"]["prefill"], answer["serving"]
    static_prefill_text = serving.get("prompts_together", 1)
    several = "1 prompt" if static_prefill_text == 1 else f"{_count(static_prefill_text)} prompts"
    tokens = (
        f"{several if is_steady_state(answer) else sequences_text(answer)} × {fmt.whole(prefill['new_tokens'])} tokens"
    )
    found = f" after {fmt.whole(prefill['cached_tokens'])} found in the cache" if prefill["cached_tokens"] else ""
    return f"{tokens}{found}, {_beside(answer, budget)}"


def _beside(answer: dict[str, Any], budget: float) -> str:
    serving = answer["serving"]
    if answer["batching"] == "continuous":
        return "while the other users' sequences decode"
    if answer["batching"] == "chunked":
        steps = "1 step" if serving["chunks"] == 1 else f"{_count(serving['chunks'])} steps"
        return f"in {steps} that decode {_count(serving['decodes_in_mixed_step'])} sequences beside it"
    if answer["batching"] == "disaggregated":
        return "on an instance that only prefills"
    return static_prefill_text(answer, budget)


def static_prefill_text(answer: dict[str, Any], budget: float) -> str:
    """How the prompts of a static batch are prefilled."""
    if answer["workload"]["batch_size"] * answer["stages"]["prefill"]["new_tokens"] > budget:
        return f"the whole batch in passes of at most {fmt.whole(budget)} tokens"
    return "the whole batch in one pass"


def ttft_parts(answer: dict[str, Any], budget: float) -> str:
    """What TTFT is made of."""
    said = {
        "continuous": "queue, what of other prompts comes first, own prefill",
        "chunked": "queue, then the mixed steps of the own prompt",
        "disaggregated": "queue, own prefill",
    }
    return said.get(answer["batching"], f"joint prefill: {static_prefill_text(answer, budget)}")


def tpot_extras(answer: dict[str, Any]) -> str:
    """What TPOT holds beside decode steps."""
    said = {
        "continuous": ", other prompts between",
        "chunked": ", mixed with other prompts or not",
        "disaggregated": ", the transfer of the cache before them",
    }
    return said.get(answer["batching"], "")


def serving(answer: dict[str, Any]) -> tuple[Facts, ...]:
    """The section of a serving object; nothing where a batch runs from start to end."""
    found = answer["serving"]
    if not found:
        return ()
    lines = _LINES.get(answer["batching"], _plainly)(found, answer["workload"]["batch_size"])
    return (Facts(title=f"Serving: {answer['batching']}", lines=tuple(lines)),)


def _static(found: dict[str, Any], batch: int) -> list[tuple[str, ...]]:
    longest = fmt.whole(found["longest_output_tokens"])
    empty = fmt.share(found["empty_slots"])
    return [("Batch", f"until its longest answer of {longest} tokens; {empty} of its slots' steps stand empty")]


def _continuous(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    others = f"{fmt.duration(found['others_prefill_s'])} while one request is answered"
    return [_running(found, users), ("Other prompts", others)]


def _chunked(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    chunk, decodes = _count(found["chunk_tokens"]), _count(found["decodes_in_mixed_step"])
    steps = found["chunks"]
    takes = "a prompt takes one" if steps == 1 else f"a prompt takes {_count(steps)}"
    mixed = f"{fmt.duration(found['mixed_step_s'])}: {chunk} tokens of prompts and {decodes} decodes; {takes}"
    pure = (
        f"{fmt.duration(found['decode_step_s'])}: decodes alone; {fmt.share(found['mixed_share'])} of steps are mixed"
    )
    if found["mixed_share"] == 1:
        pure = "none: every step is mixed"
    budget = f"at most {fmt.whole(found['token_budget'])} tokens"
    return [_running(found, users), ("Step", budget), ("Mixed step", mixed), ("Pure step", pure)]


def _disaggregated(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    rate = f"{fmt.per_second(found['requests_per_s'])} requests/s"
    instances = f"{fmt.whole(found['prefill_instances'])} prefill, {fmt.whole(found['decode_instances'])} decode"
    busy = f"{fmt.share(found['prefill_busy'])} of the time"
    decoding = (
        f"{_count(found['decode_batch'])} at once on each instance, of {fmt.whole(found['decode_places'])} places"
    )
    moved = (
        f"{fmt.duration(found['transfer_s'])}: {fmt.traffic(found['transfer_bytes'])} a device at "
        f"{fmt.bandwidth(found['link_bytes_per_s'])}; links busy {fmt.share(found['link_busy'])} of the time"
    )
    queue = [("Queue", f"{fmt.duration(found['queue_s'])} a request")] if found["queue_s"] else []
    return [
        ("Instances", f"{instances}; {fmt.whole(users)} users"),
        ("Throughput", f"{rate}, bound by {BOUNDS[found['bound']]}"),
        ("Prefill", f"busy {busy}"),
        ("Transfer", moved),
        ("Decode", f"{decoding}; memory: of one"),
        *queue,
    ]


def _plainly(found: dict[str, Any], users: int) -> list[tuple[str, ...]]:
    """Of a way that has no words of its own here: what it says, name by name."""
    said = [(name.replace("_", " "), fact if isinstance(fact, str) else f"{fact:.4g}") for name, fact in found.items()]
    return [("Users", fmt.whole(users)), *said]


def _running(found: dict[str, Any], users: int) -> tuple[str, str]:
    waits = f"; {fmt.duration(found['queue_s'])} in the queue" if found["queue_s"] else "; nobody waits"
    return ("Running", f"{fmt.whole(found['running'])} of {fmt.whole(users)} users{waits}")


def _count(value: float) -> str:
    """Means that need not be whole."""
    return fmt.digits(float(value))


_LINES = {STATIC: _static, "continuous": _continuous, "chunked": _chunked, "disaggregated": _disaggregated}
