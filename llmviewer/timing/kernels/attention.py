"""Fused attention: each group of sequences is priced by the kernel that runs it, and the times are added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator, Role
from llmviewer.core.workload import Group
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.roofline import Rates, ideal

#: Most queries of a sequence for which engines run their decode kernel (one token, or a few draft tokens).
MAX_DECODE_QUERIES = 16.0
#: Variant -> variants of equal performance, nearest first.
EQUIVALENTS: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "fp32": (),
    "bf16-kv8": (),
    "fp16-kv8": ("bf16-kv8",),
    "fp8": ("bf16-kv8",),
    "int8": ("fp8", "bf16-kv8"),
}
#: Suffixes of variants with kernels of their own: latent attention (MLA), and attention without a mask or cache.
MLA_SUFFIX, ENCODER_SUFFIX = "-mla", "-encoder"
#: Variant with a suffix -> plain variants, which substitute for it if no chip has its kernels.
SUBSTITUTES = {
    name + suffix: (name, *others) for suffix in (MLA_SUFFIX, ENCODER_SUFFIX) for name, others in EQUIVALENTS.items()
}
EQUIVALENTS |= {
    name + suffix: tuple(other + suffix for other in others)
    for suffix in (MLA_SUFFIX, ENCODER_SUFFIX)
    for name, others in EQUIVALENTS.items()
} | {"bf16-kv8-mla": ("bf16-mla",), "fp16-kv8-mla": ("bf16-kv8-mla", "bf16-mla")}


@frozen(eq=False)
class GroupTime:
    """Time of the kernel of one group of sequences.

    fixed_s: launch and other time without overlap.  tiles_s: all tiles.  byte_s: per byte moved.
    sharpness: p of the overlap of tiles and bytes.
    """

    fixed_s: Count
    tiles_s: Count
    byte_s: Count
    sharpness: Count


GroupTimer = Callable[[Group, Operator, Chip, Constants], GroupTime]


def rates_of_groups(operator: Operator, chip: Chip, time_of: Callable[[Group], GroupTime]) -> Rates:
    """Rates under which the operator takes the sum of the kernel times of its groups."""
    shape = operator.shape
    assert isinstance(shape, AttentionShape)
    first, *others = shape.groups
    time = time_of(first)
    if others:
        time = _sum(operator, shape, (time, *map(time_of, others)))
    return replace(
        ideal(operator, chip),
        matrix_flops_per_s=np.maximum(operator.matmul_flops, 1.0) / time.tiles_s,
        memory_bytes_per_s=1.0 / time.byte_s,
        l2_bytes_per_s=None,
        vector_flops_per_s=None,
        special_ops_per_s=None,
        sharpness=time.sharpness,
        fixed_s=time.fixed_s,
    )


def rates(
    operator: Operator, chip: Chip, prefill: tuple[GroupTimer, Constants], decode: tuple[GroupTimer, Constants]
) -> Rates:
    """Rates with every group priced by the kernel for its number of queries, which may differ between passes."""

    def time_of(group: Group) -> GroupTime:
        decoding = is_decode(group)
        if np.all(decoding):
            return decode[0](group, operator, chip, decode[1])
        prompt = prefill[0](group, operator, chip, prefill[1])
        return _select(decoding, decode[0](group, operator, chip, decode[1]), prompt) if np.any(decoding) else prompt

    return rates_of_groups(operator, chip, time_of)


def single_kernel(timer: GroupTimer) -> Callable[[Operator, Chip, Constants], Rates]:
    """The `rates` of a family whose kernel prices all groups."""
    return lambda operator, chip, constants: rates_of_groups(
        operator, chip, lambda group: timer(group, operator, chip, constants)
    )


def is_decode(group: Group) -> Any:
    """Mask of passes in which engines run their decode kernel: one or few new tokens after cached ones, no prompt."""
    new: Any = group.new_tokens
    return (new == 1.0) | ((new <= MAX_DECODE_QUERIES) & (group.cached_tokens > 0.0))


def _select(mask: Any, chosen: GroupTime, other: GroupTime) -> GroupTime:
    return GroupTime(
        fixed_s=np.where(mask, chosen.fixed_s, other.fixed_s),
        tiles_s=np.where(mask, chosen.tiles_s, other.tiles_s),
        byte_s=np.where(mask, chosen.byte_s, other.byte_s),
        sharpness=np.where(mask, chosen.sharpness, other.sharpness),
    )


def _sum(operator: Operator, shape: AttentionShape, parts: tuple[GroupTime, ...]) -> GroupTime:
    """Kernels of all groups, one after another.

    Each kernel's time is split between its tiles and bytes, so that these parts add up to the total.
    """
    fixed: Any = 0.0
    tiles: Any = 0.0
    moving: Any = 0.0
    for group, part in zip(shape.groups, parts, strict=True):
        computed, moved = (part.tiles_s * (group.batch_size > 0.0)), part.byte_s * group_bytes(group, operator, shape)
        powers = computed**part.sharpness, moved**part.sharpness
        both: Any = np.maximum(powers[0] + powers[1], np.finfo(np.float64).tiny)
        seconds = both ** (1.0 / part.sharpness)
        tiles, moving = tiles + seconds * powers[0] / both, moving + seconds * powers[1] / both
        fixed = fixed + part.fixed_s * (group.batch_size > 0.0)
    byte_s = np.maximum(moving, 1e-30) / np.maximum(operator.traffic_bytes, 1.0)
    return GroupTime(fixed_s=fixed, tiles_s=np.maximum(tiles, 1e-30), byte_s=byte_s, sharpness=1.0)


def group_bytes(group: Group, operator: Operator, shape: AttentionShape) -> Count:
    """A group's part of the device-memory traffic: cache in proportion to keys, the rest in proportion to tokens."""
    cached = operator.read_bytes(Role.CACHE)
    keys: Count = 0.0
    for other in shape.groups:
        keys = keys + other.batch_size * shape.keys_of(other)
    share = group.batch_size * shape.keys_of(group) / np.maximum(keys, 1.0)
    queries = np.maximum(shape.queries(), 1.0)
    return cached * share + (operator.traffic_bytes - cached) * group.tokens / queries


def cache_bits(operator: Operator) -> float:
    """Bits of a cached element; 16 if nothing is cached."""
    cached = next((a.tensor.dtype for a in operator.reads if a.tensor.role is Role.CACHE), None)
    return 16.0 if cached is None else cached.bits


def quantities(operator: Operator, chip: Chip) -> Mapping[str, Count]:
    """Number of sequences, queries and keys per sequence, heads, and KV heads per head."""
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
        "kv_share": shape.kv_heads / shape.heads,
    }


def decode_mask(operator: Operator) -> Count:
    """1.0 where attention runs as a decode kernel in all groups: a few queries per sequence over its cache."""
    shape = operator.shape
    if not isinstance(shape, AttentionShape):
        return 0.0
    every: Any = True
    for group in shape.groups:
        every = every & is_decode(group)
    return np.where(every, 1.0, 0.0)


def _own(operator: Operator, *, decodes: bool) -> Any:
    """Mask of the passes that a kernel runs in; all of them where it runs in none, as for rows of measurements."""
    mask = decode_mask(operator) == float(decodes)
    return mask if bool(np.any(mask)) else mask | True


def limits(operator: Operator, *, decodes: bool) -> Mapping[str, Count]:
    """Elements of a head, of which every kernel has a largest number (256 in FlashAttention-3), and its KV heads.

    A kernel for groups of heads that share keys ends below one KV head per head.  decodes: whether of the decode
    kernel; latent attention has wider heads and fewer KV heads there.
    """
    shape = operator.shape
    if not isinstance(shape, AttentionShape):
        return {}
    known = {"head_dim": shape.qk_dim, "kv_share": shape.kv_heads / shape.heads}
    own = _own(operator, decodes=decodes)
    return {name: np.where(own, value, 0.0) for name, value in known.items()}


def variant(operator: Operator, *, decodes: bool) -> str:
    """Variant by formats: `bf16` for products and cache, `bf16-kv8` with 8-bit cache.

    `-mla` if keys exceed values where the kernel runs, `-encoder` without a mask.  decodes: of the decode kernel.
    """
    shape = operator.shape
    if isinstance(shape, AttentionShape) and not shape.causal:
        return f"{operator.compute}{ENCODER_SUFFIX}"
    narrow = cache_bits(operator) < 12.0 and operator.compute not in ("fp8", "int8")
    latent = isinstance(shape, AttentionShape) and bool(
        np.any((shape.qk_dim != shape.v_dim) & _own(operator, decodes=decodes))
    )
    return f"{operator.compute}{'-kv8' if narrow else ''}{MLA_SUFFIX if latent else ''}"
