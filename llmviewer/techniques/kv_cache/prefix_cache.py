"""`--prefix-cache`: the beginning of every prompt is found in the cache."""

from __future__ import annotations

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, unknown
from llmviewer.techniques.technique import Change, Parameter, Technique, keeping, numbers

_RATE = Parameter(name="hit_rate", high=1.0)
SHARED = "shared"


def _make(text: str) -> Change:
    """Prefill computes the other tokens, whose attention reads the keys and values of those found.

    Of S tokens, floor(rate S) are found, in whole pages, and never the last one, whose logits are asked for.  Recurrent
    layers find the state at the end of the prefix.  `shared`: all sequences of the batch have one prefix, stored once;
    each still reads it.  Without it every sequence holds its own, as before.
    """
    words = [word.strip() for word in text.split(",")]
    shared = len(words) > 1 and words[-1] == SHARED
    if len(words) > 1 and not shared and "=" not in words[-1]:
        raise unknown("word of --prefix-cache", words[-1], (SHARED,))
    rate = numbers("--prefix-cache", ",".join(words[:-1] if shared else words), (_RATE,))["hit_rate"]
    if not rate:
        return lambda system: system
    name = f"prefix_cache({rate:g}{', shared' if shared else ''})"
    finding = keeping(name, hit_rate=rate, shared=shared)

    def change(system: System) -> System:
        if shared and system.kv_cache.reserve:
            raise UserError("--prefix-cache shared: a contiguous reservation (--kv-reserve) cannot share its beginning")
        return finding(system)

    return change


TECHNIQUE = Technique(
    name="prefix_cache",
    kind="kv cache",
    summary="Prefill computes only what of a prompt is not found in the cache; a prefix of all may be stored once.",
    formula="cached = min(floor(rate S), S - 1) in whole pages, new = S - cached; pairs new cached + "
    "new (new + 1) / 2; shared: cache of batch (context - cached) + cached tokens",
    source="vLLM automatic prefix caching, https://docs.vllm.ai/en/latest/design/prefix_caching/; RadixAttention "
    "arXiv 2312.07104",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 2048 --prefix-cache 0.5",
    make=_make,
)
