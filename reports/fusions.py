"""Fusion rules that were applied or not, with the reason."""

from __future__ import annotations

from typing import Any

from llmviewer.reports.page import Facts

#: (prefill, decode) -> stages in which a fusion applies.
WHERE = {
    ("always", "always"): "prefill, decode",
    ("always", "never"): "prefill",
    ("never", "always"): "decode",
    ("never", "never"): "never",
    ("in some passes", "always"): "some prefill passes, decode",
    ("in some passes", "never"): "some prefill passes",
}


def fusions(rows: list[dict[str, Any]]) -> tuple[Facts, ...]:
    """Returns a line per rule and candidate, merged over layer kinds; empty if no rule was requested."""
    if not rows:
        return ()
    blocks: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        kernel = row["kernel"] or ", ".join(row["operators"])
        line = (row["rule"], WHERE[row["prefill"], row["decode"]], kernel, row["reason"])
        blocks.setdefault(line, []).append(row["block"])
    order = list(dict.fromkeys(row["rule"] for row in rows))
    lines = sorted(blocks.items(), key=lambda item: order.index(item[0][0]))
    return (Facts(title="Fusions", lines=tuple((*line[:2], _sentence(*line[2:], names)) for line, names in lines)),)


def _sentence(kernel: str, reason: str, blocks: list[str]) -> str:
    """Returns `attn_norm + qkv_proj (layer): reason`; blanks around + let long names wrap."""
    where = f"{kernel.replace('+', ' + ')} ({', '.join(blocks)})" if kernel else ""
    return ": ".join(part for part in (where, reason) if part)
