"""`--kv-reserve`: one contiguous piece of cache for every sequence, as long as it may ever grow."""

from __future__ import annotations

import numpy as np

from llmviewer.techniques.technique import Change, Parameter, Technique, keeping, numbers

_TOKENS = Parameter(name="tokens", high=1e8, whole=True)


def _make(text: str) -> Change:
    """Every sequence holds max(context, reserved) tokens at once; `max` is the longest context of the model."""
    if text.strip().lower() == "max":
        return keeping("reserved(max)", reserve=np.inf)
    tokens = numbers("--kv-reserve", text, (_TOKENS,))["tokens"]
    return keeping(f"reserved({tokens:,.0f})", reserve=tokens) if tokens else lambda system: system


TECHNIQUE = Technique(
    name="kv_reserve",
    kind="kv cache",
    summary="Contiguous reservation: every sequence holds the cache of its longest context at once.",
    formula="max(context, reserved) tokens a sequence, a windowed layer at most its window; the rest is waste",
    source="FasterTransformer and Orca (Max) as arXiv 2309.06180 describes them, sections 3 and 6.1",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 500 --kv-reserve max",
    make=_make,
)
