"""Storing keys, values and latents in another number format; attention computes as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.dtypes import Dtype, cache_int
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Role
from llmviewer.formats.linear import in_dtype
from llmviewer.ops.attention import AttentionShape

#: Tensors that a KV-cache format applies to; recurrent and convolution states keep their dtype.
CACHES = ("k_cache", "v_cache", "latent_cache", "index_cache")


def with_cache(block: Block, wanted: Dtype, values: Dtype | None = None) -> Block:
    """The block with keys, values and latents stored in `wanted`, or the values in `values`.

    Plain integers below 16 bit have a 16-bit scale and zero point per head and token; a latent is one head.
    16 bits mean the model's own 16-bit dtype.  Raises UserError for formats that differ where one tensor is both.
    """
    names = _cached(block)
    if values is not None and values != wanted and names and "v_cache" not in names:
        raise UserError("keys and values are one cached tensor in this model; allowed: one format for both, as in kv8")
    dtypes = {name: _stored(block, name, values if values and name == "v_cache" else wanted) for name in names}
    if not dtypes:
        return block

    def change(access: Access) -> Access:
        dtype = dtypes.get(access.tensor.name)
        return access if dtype is None or access.tensor.role is not Role.CACHE else in_dtype(access, dtype)

    operators = tuple(
        op.having(reads=tuple(map(change, op.reads)), writes=tuple(map(change, op.writes))) for op in block.operators
    )
    states = tuple(replace(state, dtype=dtypes.get(state.name, state.dtype)) for state in block.states)
    return replace(block, operators=operators, states=states)


def _cached(block: Block) -> list[str]:
    accesses = (a for op in block.operators for a in (*op.reads, *op.writes))
    names = {a.tensor.name for a in accesses if a.tensor.role is Role.CACHE}
    return [name for name in CACHES if name in names]


def _stored(block: Block, name: str, wanted: Dtype) -> Dtype:
    plain = block.operators[0].reads[0].tensor.dtype  # dtype of the residual stream
    if wanted.bits >= 16.0:
        return plain if wanted.bits == plain.bits else wanted
    plain_integer = (
        wanted.compute.startswith("int") and wanted.name == wanted.compute
    )  # other dtypes include their scales
    return cache_int(wanted.bits, _head_width(block, name)) if plain_integer else wanted


def _head_width(block: Block, name: str) -> float:
    """Elements per head and token of a cached tensor; a latent or an index key is one head."""
    if name in ("latent_cache", "index_cache"):
        return next(state.per_token for state in block.states if state.name == name)
    shape = next((op.shape for op in block.operators if isinstance(op.shape, AttentionShape)), None)
    if shape is None:  # the projections of an encoder's output
        raise UserError("caches of cross attention in plain integers are not counted; allowed: 16 bit, fp8")
    return float(np.max(shape.qk_dim if name == "k_cache" else shape.v_dim))
