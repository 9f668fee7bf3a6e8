"""Operators for rows of measured attention: prompts, single tokens over a cache, and sequences without a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.rows.table import Table, column, divided
from llmviewer.core import dtypes
from llmviewer.core.counts import Array
from llmviewer.core.ir import Access, Operator, Role, Tensor, whole
from llmviewer.core.workload import chunk, decode, prefill
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionInputs, AttentionShape, flash
from llmviewer.techniques.kernels.flash_attention import rereads
from llmviewer.timing.kernels import power

if TYPE_CHECKING:
    import pandas as pd


#: Device and engine whose kernel for heads that share no keys (FlashAttention-2's for prompts) is unlike that for
#: groups, which splits keys: 6 % and 13 % apart, 14 % together.
LONE_HEADS = ("a100_sxm", "vllm")
#: Family of attention of one token.
DECODING = "attention_decode"
#: Beginnings of torch's kernels beside scaled_dot_product_attention; the last part of a name is the suffix.
TORCH_SPECIAL = ("varlen", "flex")
#: Kernels that SGLang and vLLM run for heads that their usual one does not have -> suffix of the engine.
OTHER_KERNELS = {"triton": "triton", "vllm_triton_attn": "triton", "vllm_flash_attn_fa4": "fa4"}


def attention(
    shape: AttentionShape, first: Any, chip: Chip, *, latent: bool = False, repeated: bool = False
) -> Operator:
    """One fused kernel over keys and values in the format of the row's cache.

    latent: values are the first elements of the keys.  repeated: one input again and again, which stays in the L2.
    """
    dtype, stored = dtypes.get_dtype(first["dtype"]), dtypes.get_dtype(first["kv_dtype"])
    q = Tensor(name="q", elements=shape.queries() * shape.heads * shape.qk_dim, dtype=dtype)
    vectors = shape.keys() * shape.kv_heads
    k, v = (
        Tensor(name=f"{name}_cache", elements=vectors * width, dtype=stored, role=Role.CACHE)
        for name, width in (("k", shape.qk_dim), ("v", 0.0 * shape.v_dim if latent else shape.v_dim))
    )
    moved = np.asarray((k.elements + v.elements) * stored.bytes + 2.0 * q.elements * dtype.bytes)
    warm_share = power.held_share(moved, chip) if repeated and first.get("source") == "aiconfigurator" else 0.0
    values = _reads(k if latent else v, warm_share)
    inputs = AttentionInputs(q=q, k=_reads(k, warm_share), v=values)
    return flash(shape, inputs, rereads(shape, inputs, chip), dtype.compute)


def _attention(group: pd.DataFrame, first: Any, chip: Chip, groups: Any, *, repeated: bool) -> Operator:
    heads, kv_heads, head_dim = (column(group, name) for name in ("heads", "kv_heads", "head_dim"))
    v_dim = column(group, "v_head_dim") if "v_head_dim" in group.columns else head_dim
    shape = AttentionShape(
        groups=groups,
        heads=heads,  # type: ignore[arg-type]
        kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=np.where(np.isfinite(v_dim), v_dim, head_dim),
        window=float(first["window"]) or np.inf,
    )
    return attention(shape, first, chip, latent=_is_absorbed_latent(group, first), repeated=repeated)


def _is_absorbed_latent(group: pd.DataFrame, first: Any) -> bool:
    """Whether values are the first elements of the keys: latent attention in absorbed form."""
    return str(first["kernel"]).startswith("mla") and bool((group["kv_heads"] == 1).all())


def _reads(tensor: Tensor, warm_share: Array | float) -> tuple[Access, ...]:
    parts = divided(whole(tensor), warm_share)
    return parts if np.any(warm_share) else parts[:1]


def _prefill(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of causal attention over a prompt after a cached prefix."""
    step = chunk(column(group, "batch"), column(group, "seq"), column(group, "prefix"))
    return (_attention(group, first, chip, step.groups, repeated=_prompt_family(first) == DECODING),)


def _prompt_family(first: Any) -> str:
    """Family of the kernel of a prompt: vLLM runs one token by that of decoding, whether others are cached or not."""
    return DECODING if str(first.get("engine", "")).startswith("vllm") and first["seq"] == 1 else "attention_prefill"


def _decode(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of attention of one new token per sequence over its cache."""
    step = decode(column(group, "batch"), column(group, "context") - 1.0)
    return (_attention(group, first, chip, step.groups, repeated=True),)


def _engine(engine: str, first: Any) -> str:
    """The engine, with a suffix for what its usual kernel does not run: other heads, packed sequences, sinks."""
    name = str(first["kernel"]).partition(" ")[0]
    special = name.startswith(TORCH_SPECIAL) or name.endswith("_sinks")
    suffix = OTHER_KERNELS.get(name, name.rpartition("_")[2] if special else "")
    return f"{engine}-{suffix}" if suffix else engine


def _decode_engine(engine: str, first: Any) -> str:
    """The engine; with `-single` where heads that share no keys run apart from others, as `LONE_HEADS` says."""
    alone = (str(first["device"]), engine) == LONE_HEADS and first["heads"] == first["kv_heads"]
    return f"{engine}-single" if alone else _engine(engine, first)


def _ungrouped_heads(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    return [(rows["heads"] % rows["kv_heads"] != 0, "heads is no multiple of kv_heads")]


def _encoder(group: pd.DataFrame, first: Any, chip: Chip) -> tuple[Operator, ...]:
    """Operator of attention in which every token of a sequence sees all of its tokens, as in a vision tower."""
    heads, head_dim = column(group, "heads"), column(group, "head_dim")
    shape = AttentionShape(
        groups=prefill(column(group, "batch"), column(group, "seq")).groups,
        heads=heads,  # type: ignore[arg-type]
        kv_heads=heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        causal=False,
    )
    return (attention(shape, first, chip),)


_FORMULA = ("dtype", "kv_dtype", "window", "kernel")
PREFILL = Table(
    shape=("batch", "seq", "heads", "kv_heads", "head_dim", "window", "prefix"),
    formula=_FORMULA,
    needed=("dtype",),
    build=_prefill,
    defaults={"kernel": "", "window": 0, "prefix": 0},
    engine=lambda engine, first: (_decode_engine if _prompt_family(first) == DECODING else _engine)(engine, first),
    family=_prompt_family,
    apart=lambda rows: (rows["seq"] == 1) * (1 + (rows["heads"] == rows["kv_heads"])),
    contradictions=_ungrouped_heads,
)
ENCODER = Table(
    shape=("batch", "seq", "heads", "head_dim"),
    formula=("dtype", "kv_dtype"),
    needed=("dtype",),
    build=_encoder,
    family=lambda first: "attention_prefill",
)
DECODE = Table(
    shape=("batch", "context", "heads", "kv_heads", "head_dim", "window"),
    formula=_FORMULA,
    needed=("dtype",),
    build=_decode,
    defaults={"kernel": "", "window": 0},
    engine=_decode_engine,
    apart=lambda rows: rows["heads"] == rows["kv_heads"],
    family=lambda first: DECODING,
    contradictions=_ungrouped_heads,
)
