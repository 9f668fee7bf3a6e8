"""Fused attention: prompts (many queries per sequence) and decode steps (few queries over a long cache)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.ir import Count, Operator, Role
from llmviewer.kernels.family import Constant, Constants, Family
from llmviewer.ops.attention import AttentionShape

#: Queries of one sequence up to which engines run their decode kernel (one token, or a few drafted ones).
MOST_DECODE_QUERIES = 16.0


def prefill(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, and shares of peak and bandwidth."""
    sheet = ideal(operator, chip)
    return replace(
        sheet,
        matrix_flops_per_s=sheet.matrix_flops_per_s * constants["compute"],
        memory_bytes_per_s=sheet.memory_bytes_per_s * constants["memory"],
        l2_bytes_per_s=None,
        vector_flops_per_s=None,
        special_ops_per_s=None,
        sharpness=constants["sharpness"],
        fixed_s=constants["floor"] * 1e-6,
    )


def decode(operator: Operator, chip: Chip, constants: Constants) -> Rates:
    """A floor, a cost per sequence and KV head, and a share of the bandwidth."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    sheet = ideal(operator, chip)
    sequences = sum(group.batch_size for group in shape.groups)
    return replace(
        sheet,
        matrix_flops_per_s=sheet.matrix_flops_per_s * 0.5,
        memory_bytes_per_s=sheet.memory_bytes_per_s * constants["memory"],
        l2_bytes_per_s=None,
        vector_flops_per_s=None,
        special_ops_per_s=None,
        sharpness=2.0,
        fixed_s=(constants["floor"] + constants["task"] * sequences * shape.kv_heads) * 1e-6,
    )


def covers(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Sequences, queries and keys of a sequence, heads."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    group = shape.groups[0]
    return {
        "batch": group.batch_size,
        "queries": group.new_tokens,
        "keys": shape.keys_of(group),
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.qk_dim,
    }


def variant(operator: Operator) -> str:
    """`bf16`: products and cache alike; `bf16-kv8`: a cache of 8 bit."""
    cached = next((a.tensor.dtype for a in operator.reads if a.tensor.role is Role.CACHE), None)
    narrow = cached is not None and cached.bits < 12.0
    return f"{operator.compute}-kv8" if narrow and operator.compute != "fp8" else operator.compute


_TWINS = {"bf16": ("fp16",), "fp16": ("bf16",), "fp16-kv8": ("bf16-kv8",)}
_FLOOR = Constant(name="floor", unit="us", meaning="shortest kernel", start=8.0, low=0.0, high=200.0)
_MEMORY = Constant(name="memory", unit="1", meaning="share of the bandwidth", start=0.8, low=0.05, high=1.0)

PREFILL = Family(
    name="attention_prefill",
    constants=(
        _FLOOR,
        Constant(name="compute", unit="1", meaning="share of the dense peak", start=0.5, low=0.02, high=1.0),
        _MEMORY,
        Constant(name="sharpness", unit="1", meaning="exponent of the maximum", start=2.0, low=1.0, high=20.0),
    ),
    rates=prefill,
    covers=covers,
    variant=variant,
    twins=_TWINS,
)
DECODE = Family(
    name="attention_decode",
    constants=(
        _FLOOR,
        _MEMORY,
        Constant(name="task", unit="us", meaning="per sequence and KV head", start=0.02, low=0.0, high=5.0),
    ),
    rates=decode,
    covers=covers,
    variant=variant,
    twins=_TWINS,
)
