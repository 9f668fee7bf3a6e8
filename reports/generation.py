"""Speculative or branched generation in words: draft passes, target pass, tokens and speedup; early exit."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts

#: Largest batch size of the break-even search.
MAX_BATCH_SIZE = 2**14
#: Fields with a line of their own; the others are settings of the scheme.
OWN_LINES = (
    "scheme",
    "new_tokens",
    "tokens_per_round",
    "pass_s",
    "extra_s",
    "drafts",
    "token_s",
    "plain_token_s",
    "speedup",
    "pays_up_to_batch_size",
)


def generation(found: dict[str, Any] | None, memory: dict[str, Any]) -> tuple[Facts, ...]:
    """Returns the section of a generation object; empty with plain decoding.  memory: the memory object."""
    if found is None:
        return ()
    facts = ", ".join(_fact(name, fact) for name, fact in found.items() if name not in OWN_LINES)
    lines = [
        *((("Settings", facts),) if facts else ()),
        *(("Draft", _draft(draft)) for draft in found["drafts"] if draft["passes"]),
        ("Decode step" if _branched(found) else "Target", _pass(found)),
        *((("Overhead", f"{fmt.duration(found['extra_s'])} per round outside kernels"),) if found["extra_s"] else ()),
        ("Tokens", _tokens(found)),
    ]
    if found["pays_up_to_batch_size"] is not None:
        lines.append(("Pays off", _break_even(found["pays_up_to_batch_size"], memory["max_batch_size"])))
    return (Facts(title=f"Generation: {found['scheme']}", lines=tuple(lines)),)


def exits(found: dict[str, Any] | None) -> tuple[Facts, ...]:
    """Returns the section of an early_exit object; empty without early exit."""
    if found is None:
        return ()
    layers = f"of {found['layers']}"
    depth = f"a token runs {fmt.digits(found['token_layers'])} {layers} layers"
    if found["step_layers"] > found["token_layers"] * (1.0 + 1e-9):
        depth += f", the deepest of a step {fmt.digits(found['step_layers'])}"
    own, plain = (fmt.duration(found[name]) for name in ("time_s", "plain_time_s"))
    speed = f"{own}: {fmt.times(found['speedup'])} the speed of all layers ({plain})"
    return (Facts(title="Early exit", lines=(("Depth", depth), ("Time", speed))),)


def _fact(name: str, fact: float | str) -> str:
    """Returns a setting of the scheme in words; sizes with their unit."""
    shown = fmt.traffic if "_bytes" in name else "{:.4g}".format
    value = fact if isinstance(fact, str) else shown(fact)
    return f"{name.replace('_bytes', '').replace('_', ' ')} {value}"


def _draft(draft: dict[str, Any]) -> str:
    passes = f"{draft['passes']:.3g} {'pass' if draft['passes'] == 1 else 'passes'} of {fmt.duration(draft['pass_s'])}"
    tokens = f" over {fmt.digits(draft['new_tokens'])} tokens per sequence" if draft["new_tokens"] != 1 else ""
    memory = " + ".join(
        f"{fmt.memory(draft[field])} {label}"
        for field, label in (("weights_bytes", "weights"), ("kv_cache_bytes", "KV cache"))
        if draft[field]
    )
    prefill = f"; prefill {fmt.duration(draft['prefill_s'])}" if draft["prefill_s"] else ""
    return f"{draft['name']}: {passes}{tokens}{prefill}; memory: {memory or 'none of its own'}"


def _pass(found: dict[str, Any]) -> str:
    new = found["new_tokens"]
    tokens = "1 token" if new == 1 else f"{fmt.whole(new)} tokens"
    if _branched(found):
        pass_s = fmt.duration(found["pass_s"])
        if "branches" not in found:
            return f"{pass_s} within a block, as shown above"
        each = "one" if new == 1 else fmt.whole(new)
        return f"{pass_s}, as shown above: first {tokens} per sequence, then {each} per branch"
    return f"1 pass of {fmt.duration(found['pass_s'])} over {tokens} per sequence"


def _branched(found: dict[str, Any]) -> bool:
    """Whether branches or blocks are decoded in parallel, instead of in rounds."""
    return found["pays_up_to_batch_size"] is None


def _tokens(found: dict[str, Any]) -> str:
    per = "tokens per pass on average" if _branched(found) else "tokens expected per round"
    return (
        f"{found['tokens_per_round']:.3g} {per}, {fmt.duration(found['token_s'])} per token: "
        f"{fmt.times(found['speedup'])} the speed of plain decoding ({fmt.duration(found['plain_token_s'])})"
    )


def _break_even(batch: int, fits: int) -> str:
    if not batch:
        return "at no batch size: plain decoding is faster"
    if batch >= fits > 0:
        return f"at every batch size that fits (up to {fmt.whole(fits)})"
    return f"up to batch size {fmt.whole(batch)}{' and beyond' if batch >= MAX_BATCH_SIZE else ''} at this context"
