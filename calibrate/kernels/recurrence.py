"""One token of linear recurrences, compiled into few kernels: Mamba-2's state update and the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels.dtypes import DTYPES
from llmviewer.calibrate.kernels.elementwise import need_compiler
from llmviewer.calibrate.timer import PreparedKernel


def build(columns: Mapping[str, Any], buffers: Buffers) -> PreparedKernel:
    """States are cold, and updated in place; inputs of the token are warm."""
    need_compiler(buffers.kind)
    dtype = DTYPES[columns["dtype"]]
    batch, heads, dim, state = (columns[name] for name in ("batch", "heads", "head_dim", "state"))
    states = buffers.rotating(dtype, (batch, heads, dim, state))
    x = buffers.random(dtype, (batch, heads, dim))
    steps, gates = (buffers.random(torch.float32, (batch, heads)) for _ in range(2))
    keys, queries = (
        buffers.random(dtype, (batch, columns["groups"], state)).repeat_interleave(heads // columns["groups"], 1)
        for _ in range(2)
    )
    update = torch.compile(UPDATES[columns["op"]], dynamic=True)
    update(states.tensors[0][0], x, steps, gates, keys, queries)  # compiles, outside the samples
    return states.kernel(lambda i: update(states.tensors[i][0], x, steps, gates, keys, queries))


def mamba2(
    states: torch.Tensor, x: torch.Tensor, steps: torch.Tensor, gates: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """state = exp(-softplus(step)) state + softplus(step) x b; the output is state c, plus a skip of x.

    states: [batch, heads, width, state], in place.  x: [batch, heads, width].  b, c: [batch, heads, state].
    """
    step = F.softplus(steps)[..., None, None]
    new = torch.exp(-step) * states.float() + step * x[..., None].float() * b[:, :, None].float()
    states.copy_(new)
    return ((new * c[:, :, None].float()).sum(-1) + gates[..., None] * x.float()).to(x.dtype)


def gated_delta(
    states: torch.Tensor, x: torch.Tensor, steps: torch.Tensor, gates: torch.Tensor, k: torch.Tensor, q: torch.Tensor
) -> torch.Tensor:
    """state = a state + g (x - a state k) k; the output is state q (arXiv 2412.06464).  Shapes are those of mamba2."""
    k, q = F.normalize(k.float(), dim=-1)[:, :, None], F.normalize(q.float(), dim=-1)[:, :, None]
    decayed = torch.exp(-F.softplus(steps))[..., None, None] * states.float()
    error = (x.float() - (decayed * k).sum(-1)) * torch.sigmoid(gates)[..., None]
    new = decayed + error[..., None] * k
    states.copy_(new)
    return (new * q).sum(-1).to(x.dtype)


#: op -> (states, input, steps, gates, keys, queries) -> output [batch, heads, width].
UPDATES: dict[str, Callable[..., torch.Tensor]] = {"mamba2": mamba2, "gated_delta": gated_delta}
