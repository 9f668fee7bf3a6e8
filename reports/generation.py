"""A round of generation in words: what drafts, what the model verifies, what it brings against plain decoding."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts

#: Where the search for the batch at which a scheme stops paying ends.
MOST = 2**14
#: Fields of the object that stand in lines of their own; what is left are facts of the scheme.
SAID = (
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
    """The section of a generation object; nothing where decoding is plain.  memory: of the same answer."""
    if found is None:
        return ()
    facts = ", ".join(_fact(name, fact) for name, fact in found.items() if name not in SAID)
    lines = [
        *((("Asked", facts),) if facts else ()),
        *(("Draft", _draft(draft)) for draft in found["drafts"] if draft["passes"]),
        ("Model", _pass(found)),
        *((("Beside", f"{fmt.duration(found['extra_s'])} a round, no kernel"),) if found["extra_s"] else ()),
        ("Token", _token(found)),
    ]
    if found["pays_up_to_batch_size"] is not None:
        lines.append(("Pays", _pays(found["pays_up_to_batch_size"], memory["max_batch_size"])))
    return (Facts(title=f"Generation: {found['scheme']}", lines=tuple(lines)),)


def _fact(name: str, fact: float | str) -> str:
    """A fact of the scheme in words; sizes with their unit."""
    shown = fmt.traffic if "_bytes" in name else "{:.4g}".format
    value = fact if isinstance(fact, str) else shown(fact)
    return f"{name.replace('_bytes', '').replace('_', ' ')} {value}"


def _draft(draft: dict[str, Any]) -> str:
    passes = f"{draft['passes']:.3g} {'pass' if draft['passes'] == 1 else 'passes'} of {fmt.duration(draft['pass_s'])}"
    tokens = f" over {fmt.digits(draft['new_tokens'])} tokens of each sequence" if draft["new_tokens"] != 1 else ""
    held = " and ".join(
        f"{fmt.memory(draft[field])} of {what}"
        for field, what in (("weights_bytes", "weights"), ("kv_cache_bytes", "KV cache"))
        if draft[field]
    )
    prefill = f"; prefill {fmt.duration(draft['prefill_s'])}" if draft["prefill_s"] else ""
    return f"{draft['name']}: {passes}{tokens}{prefill}; holds {held or 'nothing of its own'}"


def _pass(found: dict[str, Any]) -> str:
    new = found["new_tokens"]
    tokens = "1 token" if new == 1 else f"{fmt.whole(new)} tokens"
    if _branched(found):
        pass_s = fmt.duration(found["pass_s"])
        return f"like the decode step shown, {pass_s}: of each sequence, then of its branches at once"
    return f"1 pass of {fmt.duration(found['pass_s'])} over {tokens} of each sequence"


def _branched(found: dict[str, Any]) -> bool:
    """Whether branches decode side by side, instead of one round after another."""
    return found["pays_up_to_batch_size"] is None


def _token(found: dict[str, Any]) -> str:
    brought = f"{found['tokens_per_round']:.3g} {'a pass in the mean' if _branched(found) else 'expected a round'}"
    return (
        f"{brought}, {fmt.duration(found['token_s'])} each: "
        f"{fmt.times(found['speedup'])} the speed of plain decoding ({fmt.duration(found['plain_token_s'])})"
    )


def _pays(batch: int, fits: int) -> str:
    if not batch:
        return "at no batch: plain decoding is faster"
    if batch >= fits > 0:
        return f"at every batch that fits (up to {fmt.whole(fits)})"
    return f"up to batch {fmt.whole(batch)}{' and beyond' if batch >= MOST else ''} at this context"
