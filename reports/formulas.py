"""Formulas in words: how an operator's FLOPs and bytes are counted (docs/conventions.md), what its time is made of."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import format as fmt

#: kind -> how its FLOPs are counted.
FLOPS = {
    "gemm": "2 · tokens · inputs · outputs (+ tokens · outputs for a bias)",
    "attention": "2 · heads · pairs · (d_qk + d_v), pairs that the mask lets through; softmax 5 a score",
    "softmax": "5 a score, one of them an exponential",
    "norm": "RMSNorm 7, LayerNorm 8 an element",
    "elementwise": "SiLU · up 5, GELU 8, a sum 1 an element; RoPE 6 a rotated pair; quantizing 3 an element",
    "recurrence": "state space and lightning 4, gated delta rule 6 a state element and token",
    "conv": "2 · kernel · channels a token",
    "embedding": "none: rows of a table are gathered",
    "collective": "sums of an all-reduce, 1 an element and device",
    "copy": "none: tensors move between host and device",
}
BYTES = "weights once a pass, activations read once and written once, keys and values of KV heads"


def seconds(operator: dict[str, Any], efficiency: str) -> str:
    """`max(memory 21.9 µs, compute 3.1 µs) = 21.9 µs`, of one layer."""
    parts = dict(operator["time_by_resource_s"])
    fixed = parts.pop("overhead", None)
    listed = ", ".join(f"{name} {fmt.duration(spent)}" for name, spent in sorted(parts.items(), key=lambda p: -p[1]))
    largest = "max" if efficiency == "ideal" else "smooth max"
    beside = f" + overhead {fmt.duration(fixed)}" if fixed else ""
    return f"{f'{largest}({listed})' if len(parts) > 1 else listed}{beside} = {fmt.duration(operator['time_s'])}"
