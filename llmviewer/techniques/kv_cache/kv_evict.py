"""`--kv-evict`: of the cached tokens only some are kept."""

from __future__ import annotations

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.techniques.technique import Change, Parameter, Technique, keeping, numbers

_KEPT = Parameter(name="kept", low=1e-6, high=1.0)


def _make(text: str) -> Change:
    """After a pass every layer keeps floor(kept C) of its C tokens, one at least; the next pass attends to those and to
    its own new ones.

    So a whole prompt attends in full, a decode step and a later chunk of a prompt to what is left.  A windowed layer
    keeps as many, at most its window; a chunked layer (Llama 4) that share of the chunk begun.  Not counted: choosing
    the tokens, and the one layer that holds its whole prompt while it is being cut.
    """
    kept = numbers("--kv-evict", text, (_KEPT,))["kept"]
    if kept == 1.0:
        return lambda system: system
    evicting = keeping(f"evict(keep {kept:g})", kept=kept)

    def change(system: System) -> System:
        if system.kv_cache.shared:
            raise UserError(
                "--kv-evict: sequences evict different tokens and cannot share a prefix (--prefix-cache shared)"
            )
        return evicting(system)

    return change


TECHNIQUE = Technique(
    name="kv_evict",
    kind="kv cache",
    summary="Token eviction: attention reads, and the cache keeps, a share of the tokens seen so far.",
    formula="max(floor(kept C), 1) of C cached tokens, attended and resident; new tokens of a pass all",
    source="H2O arXiv 2306.14048; StreamingLLM arXiv 2309.17453",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 4096 --batch-size 8 --kv-evict 0.2",
    make=_make,
)
