"""Which fusions fired, which not, and why."""

from __future__ import annotations

from typing import Any

from llmviewer.reports.page import Facts

#: (prefill, decode) -> where a fusion applies.
WHERE = {
    ("always", "always"): "prefill, decode",
    ("always", "never"): "prefill",
    ("never", "always"): "decode",
    ("never", "never"): "never",
    ("in some passes", "always"): "some prefill, decode",
    ("in some passes", "never"): "some prefill",
}


def fusions(rows: list[dict[str, Any]]) -> tuple[Facts, ...]:
    """A line per rule and candidate, the same in several kinds of layers once; nothing where no rule was asked for."""
    if not rows:
        return ()
    blocks: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        what = row["kernel"] or ", ".join(row["operators"])
        line = (row["rule"], WHERE[row["prefill"], row["decode"]], what, row["reason"])
        blocks.setdefault(line, []).append(row["block"])
    order = list(dict.fromkeys(row["rule"] for row in rows))
    lines = sorted(blocks.items(), key=lambda item: order.index(item[0][0]))
    return (Facts(title="Fusions", lines=tuple((*line[:2], _sentence(*line[2:], names)) for line, names in lines)),)


def _sentence(what: str, reason: str, blocks: list[str]) -> str:
    """`attn_norm + qkv_proj (layer): a tile takes ...`; long kernels may break between their operators."""
    where = f"{what.replace('+', ' + ')} ({', '.join(blocks)})" if what else ""
    return ": ".join(part for part in (where, reason) if part)
