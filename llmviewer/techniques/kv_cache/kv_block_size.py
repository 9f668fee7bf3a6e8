"""`--kv-block-size`: the cache in pages."""

from __future__ import annotations

from llmviewer.techniques.technique import Change, Parameter, Technique, keeping, numbers

_SIZE = Parameter(name="tokens", low=1, high=65536, whole=True)


def _make(text: str) -> Change:
    """A sequence holds whole pages; on average (block - 1) / 2 tokens of its last one are empty.

    A window may begin and end inside pages and holds up to one more.  Recurrent state has no pages; block tables
    (4 bytes a page) are not counted.  Attention reads tokens, not pages.
    """
    tokens = numbers("--kv-block-size", text, (_SIZE,))["tokens"]
    return keeping(f"paged({tokens:g})", block_size=tokens) if tokens > 1 else lambda system: system


TECHNIQUE = Technique(
    name="kv_block_size",
    kind="kv cache",
    summary="PagedAttention: a sequence holds whole pages of tokens; the end of the last one is empty.",
    formula="ceil(tokens / block) block, mean waste (block - 1) / 2 tokens a sequence; a window of w tokens at most "
    "ceil((w - 1) / block) + 1 pages; block tables not counted",
    source="PagedAttention (vLLM) arXiv 2309.06180, section 4.2",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 500 --kv-block-size 16",
    make=_make,
)
