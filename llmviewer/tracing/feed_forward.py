"""The feed-forward part of a traced layer: an MLP, or experts with their router and shared expert."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llmviewer.layers.feed_forward import Mlp, Moe
from llmviewer.tracing.parts import Trace, biased, linears

if TYPE_CHECKING:
    from llmviewer.tracing.recorder import Call


def feed_forward(trace: Trace, name: str, calls: list[Call]) -> Mlp | Moe:
    """The feed-forward part of calls: an MLP, or experts with their router and shared expert."""
    experts = [call for call in calls if any(one.dim() == 3 for one in call.module.parameters(recurse=False))]
    return moe(trace, name, calls, experts) if experts else mlp(trace, name, linears(trace, calls))


def mlp(trace: Trace, name: str, found: list[tuple[Call, tuple[int, int]]], prefix: str = "") -> Mlp:
    """The MLP of two or three linear layers."""
    shapes = [size for _, size in found]
    inner, hidden = shapes[-1] if shapes else (0, 0), trace.hidden
    into = shapes[:-1]
    forms = {
        (False, False): [(hidden, inner[0])],
        (True, False): [(hidden, inner[0])] * 2,
        (True, True): [(hidden, 2 * inner[0])],
    }
    form = next((form for form, wanted in forms.items() if wanted == into), None)
    if form is None or inner[1] != hidden:
        trace.refuse(name, f"linear layers {shapes} are no MLP")
    biases = biased([call for call, _ in found])
    if len(set(biases[:-1])) > 1 or (biases[0] and not biases[-1]):
        trace.refuse(name, "only some linear layers of an MLP have a bias")
    return Mlp(
        hidden=hidden,
        intermediate=inner[0],
        activation=trace.act(),
        dtype=trace.dtype,
        gated=form[0],
        fused=form[1],
        bias=biases[0],
        out_bias=biases[-1] and not biases[0],
        prefix=prefix,
    )


def moe(trace: Trace, name: str, calls: list[Call], experts: list[Call]) -> Moe:
    """Experts stored as one tensor per matrix; the router is the matrix with a row for each expert."""
    owner = experts[0].module
    own = dict(owner.named_parameters(recurse=False))
    matrices = [tuple(one.shape) for one in own.values() if one.dim() == 3]
    count = int(matrices[0][0])
    width = min(math.prod(shape[1:]) for shape in matrices) // trace.hidden
    chosen = experts[0].shapes[1][-1] if len(experts[0].shapes) > 1 else 0
    two = sorted(sorted(shape[1:]) for shape in matrices)
    wanted = sorted((sorted((width, trace.hidden)), sorted((2 * width, trace.hidden))))
    if len(experts) != 1 or two != wanted or set(own) != {"gate_up_proj", "down_proj"} or not 0 < chosen <= count:
        trace.refuse(experts[0].name, f"experts with {sorted(own)} of {matrices}, {chosen} chosen")
    trace.claim(owner)
    inside = {call.name for call in calls if call.name.startswith(experts[0].name)}
    routers = [call for call in calls if _makes_scores(call, count, trace.hidden)]
    if len(routers) != 1:
        trace.refuse(name, f"{len(routers)} routers for {count} experts")
    trace.claim(routers[0].module)
    others = [call for call in calls if call.name not in inside and call is not routers[0]]
    found = linears(trace, others)
    gates = [call for call, size in found if size == (trace.hidden, 1)]
    shared = [one for one in found if one[0] not in gates]
    expert = Mlp(hidden=trace.hidden, intermediate=width, activation=trace.act(), dtype=trace.dtype)
    return Moe(
        expert=expert,
        experts=count,
        chosen=chosen,
        dtype=trace.dtype,
        hidden=trace.hidden,
        shared=mlp(trace, name, shared) if shared else None,
        shared_gate=bool(gates),
        router_bias=biased(routers)[0],
        correction_bias=any("correction_bias" in key for key, _ in routers[0].module.named_buffers()),
    )


def _makes_scores(call: Call, experts: int, hidden: int) -> bool:
    weight = getattr(call.module, "weight", None)
    return weight is not None and tuple(weight.shape) == (experts, hidden)
