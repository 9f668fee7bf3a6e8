"""Routed experts of a layer: rows sorted by expert, two grouped GEMMs (torch._grouped_mm), SiLU·up, weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES, UnsupportedError, need_capability
from llmviewer.calibrate.kernels.experts import need_grouped_gemm
from llmviewer.calibrate.rows.routing import busiest_loads
from llmviewer.calibrate.timer import PreparedKernel
from llmviewer.core.frozen import frozen


@frozen
class Choice:
    """Experts that the tokens of a device chose.

    experts: [tokens, slots] number of an expert; the number of experts where a token uses fewer than `slots`.
    scores: [tokens, 1, slots] weights of the sum, 0 there.  rows: number of pairs of a token and an expert.
    """

    experts: torch.Tensor
    scores: torch.Tensor
    rows: int


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """The device with most rows of `ep`, and 1 / `tp` of each of its experts; it holds the tokens that reach it."""
    need_grouped_gemm(buffers.kind)
    if columns["dtype"] == "fp8":
        need_scaled_grouped_gemm(buffers.kind)
    names = ("tokens", "experts", "topk", "ep", "routing")
    loads = busiest_loads(*(columns[name] for name in names))
    dtype, hidden, inner = DTYPES[columns["dtype"]], columns["hidden"], columns["inter"] // columns["tp"]
    wide = torch.bfloat16 if dtype.itemsize == 1 else dtype
    weights = buffers.rotating(dtype, (len(loads), 2 * inner, hidden), (len(loads), hidden, inner))
    chosen = choice(loads, columns["tokens"], wide, buffers)
    x = buffers.random(wide, (len(chosen.experts), hidden))
    numbers = torch.arange(max(len(loads), chosen.experts.numel()), device=buffers.kind)
    ones = torch.ones(max(chosen.rows, len(loads) * max(2 * inner, hidden)), device=buffers.kind)
    return PreparedKernel(
        run=lambda i: layer(x, chosen, weights.tensors[i], numbers, ones),
        copies=len(weights),
        rotated_bytes=weights.total_bytes * sum(load > 0 for load in loads) / len(loads),
    )


def choice(loads: Sequence[int], tokens: int, dtype: torch.dtype, buffers: Buffers) -> Choice:
    """Pairs with `loads` rows per expert, dealt to the tokens in turn, so that none has an expert twice."""
    rows = sum(loads)
    reached = min(tokens, rows)
    slots = -(-rows // reached)
    dealt = [expert for expert, load in enumerate(loads) for _ in range(load)]
    dealt += [len(loads)] * (slots * reached - rows)
    experts = torch.tensor(dealt, device=buffers.kind).view(slots, reached).t().contiguous()
    scores = buffers.random(dtype, (reached, 1, slots)).masked_fill_((experts == len(loads)).unsqueeze(1), 0.0)
    return Choice(experts=experts, scores=scores, rows=rows)


def need_scaled_grouped_gemm(kind: str) -> None:
    """Raise UnsupportedError without torch._scaled_grouped_mm; which needs Hopper or later for scales of rows."""
    if kind != "cuda" or not hasattr(torch, "_scaled_grouped_mm"):
        raise UnsupportedError("fp8 experts need CUDA and torch._scaled_grouped_mm")
    need_capability(kind, 9, 0, "_scaled_grouped_mm")


def _product(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, ones: torch.Tensor | None) -> torch.Tensor:
    """Rows times the transposed matrix of their expert; for 8-bit weights the rows are converted, with scales of 1."""
    if ones is None or weights.dtype.itemsize > 1:
        return torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
    experts, columns = weights.shape[:2]
    return torch._scaled_grouped_mm(
        x.to(weights.dtype), weights.transpose(1, 2), ones[: len(x)], ones[: experts * columns].view(experts, columns),
        offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True,
    )  # fmt: skip


def layer(
    x: torch.Tensor,
    chosen: Choice,
    weights: tuple[torch.Tensor, ...],
    numbers: torch.Tensor,
    ones: torch.Tensor | None = None,
) -> torch.Tensor:
    """Output of the experts for every token.  weights: gate and up, down.  numbers: 0, 1, 2 ... for all pairs.

    ones: scales for 8-bit weights, as many as rows and as columns of all experts.
    """
    into, out = weights
    tokens, slots = chosen.experts.shape
    experts, order = chosen.experts.view(-1).sort(stable=True)
    ends = torch.searchsorted(experts, numbers[: len(into)], right=True, out_int32=True)
    gate, up = _product(x[order[: chosen.rows] // slots], into, ends, ones).chunk(2, dim=-1)
    down = _product(F.silu(gate) * up, out, ends, ones)
    # pairs without an expert are sorted last; they read any row and weigh 0
    row = torch.empty_like(order).scatter_(0, order, numbers[: len(order)]).clamp_(max=chosen.rows - 1)
    return torch.bmm(chosen.scores, down[row].view(tokens, slots, -1)).squeeze(1)
