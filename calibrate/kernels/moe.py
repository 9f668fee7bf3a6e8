"""Routed experts of a layer: rows sorted by expert, two grouped GEMMs (torch._grouped_mm), SiLU·up, weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.kernels.experts import need_grouped_gemm
from llmviewer.calibrate.rows.routing import busiest_loads
from llmviewer.calibrate.timer import PreparedKernel


@dataclass(frozen=True, slots=True, kw_only=True)
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
    names = ("tokens", "experts", "topk", "ep", "routing")
    loads = busiest_loads(*(columns[name] for name in names))
    dtype, hidden, inner = DTYPES[columns["dtype"]], columns["hidden"], columns["inter"] // columns["tp"]
    weights = buffers.rotating(dtype, (len(loads), 2 * inner, hidden), (len(loads), hidden, inner))
    chosen = choice(loads, columns["tokens"], dtype, buffers)
    x = buffers.random(dtype, (len(chosen.experts), hidden))
    numbers = torch.arange(max(len(loads), chosen.experts.numel()), device=buffers.kind)
    return PreparedKernel(
        run=lambda i: layer(x, chosen, weights.tensors[i], numbers),
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


def layer(x: torch.Tensor, chosen: Choice, weights: tuple[torch.Tensor, ...], numbers: torch.Tensor) -> torch.Tensor:
    """Output of the experts for every token.  weights: gate and up, down.  numbers: 0, 1, 2 ... for all pairs."""
    into, out = weights
    tokens, slots = chosen.experts.shape
    experts, order = chosen.experts.view(-1).sort(stable=True)
    ends = torch.searchsorted(experts, numbers[: len(into)], right=True, out_int32=True)
    gate, up = torch._grouped_mm(x[order[: chosen.rows] // slots], into.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    down = torch._grouped_mm(F.silu(gate) * up, out.transpose(1, 2), offs=ends)
    # pairs without an expert are sorted last; they read any row and weigh 0
    row = torch.empty_like(order).scatter_(0, order, numbers[: len(order)]).clamp_(max=chosen.rows - 1)
    return torch.bmm(chosen.scores, down[row].view(tokens, slots, -1)).squeeze(1)
