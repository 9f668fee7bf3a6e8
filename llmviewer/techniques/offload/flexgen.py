"""`--offload flexgen`: the placement on device, host and disk, and who computes with it, chosen for each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis import placement
from llmviewer.analysis.placement import Shares
from llmviewer.analysis.system import System
from llmviewer.core.workload import Request, prefill
from llmviewer.hardware.chip import Host
from llmviewer.hardware.figures import Figure
from llmviewer.models.model import Model
from llmviewer.ops.gemm import is_routed
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.offload.choices import Free, Search, with_shares
from llmviewer.techniques.offload.plan import HostWork, Offload, with_host, with_offload
from llmviewer.techniques.technique import Change

#: Placeholder among the passes of a system until the request is known.
NAME = "offload(flexgen)"


def flexgen(host: Host, figures: Mapping[str, Figure], compute: HostWork, batches: int | None = None) -> Change:
    """Choose shares of weights, cache and hidden states on device, host and disk, and what the host computes, so that
    the request takes least time.

    A linear program finds the shares for each choice of what the host computes (choices.py); of their optima the
    fastest that fits is taken.  A layer is copied while the previous one computes; prefill and generation each take as
    long as their slowest resource (kernels, link in, link out, host memory or disk), summed over layers.  The footprint
    is that of the batch at its end.  A static batch is also divided into GPU batches, until a finer division is not
    faster; a sweep over batch sizes finds the block.  compute: the most that the host computes; FlexGen's attends.
    batches: their number, None to search it.  Source: FlexGen, arXiv 2303.06865, sections 4.2 and 4.3: its program,
    with the counts of this model.
    """

    def change(system: System) -> System:
        hosted = with_host(system, host, figures)
        return replace(hosted, copies_beside=True, policy=partial(_policy, compute, batches)).listing(NAME)

    return change


def _policy(
    compute: HostWork, batches: int | None, model: Model, system: System, request: Request, token_budget: float
) -> System:
    """The system with the best placement for the request."""

    def cost(plan: Offload) -> placement.Cost:
        return placement.cost_of(model, placed(system, plan), request, token_budget)

    def program(plan: Offload, free: Free) -> placement.Problem:
        def build(shares: Shares) -> System:
            return placed(system, with_shares(plan, shares, free))

        return placement.problem(model, request, token_budget, build, free)

    layers = [block for block in model.graph(prefill(1.0, 1.0)).blocks if block.is_layer]
    search = Search(
        layers=sum(block.repeats for block in layers),
        experts=any(is_routed(op) for block in layers for op in block.operators),
        compute=compute,
        counts=(batches,) if batches else _counts(system, request),
        program=program,
        cost=cost,
    )
    return replace(placed(system, search.best()), policy=None)


def _counts(system: System, request: Request) -> tuple[int, ...]:
    """Numbers of GPU batches that divide a static batch into parts of 4, 8, 12 ... sequences."""
    own = system.parallelism
    if own.pipeline > 1 or system.spatial or system.scheme is not None or system.batching is not STATIC:
        return (1,)
    batch = int(np.max(own.replica(request).batch_size))
    return (1, *(count for count in range(2, batch // 4 + 1) if batch % (4 * count) == 0))


def placed(system: System, plan: Offload) -> System:
    """The system with its placeholder replaced by a plan, also in draft models that use the target's weights."""
    at = [applied.name for applied in system.passes].index(NAME)
    before = replace(system, passes=system.passes[:at])
    copies = not (plan.is_empty or plan.on_host or (plan.delegates and plan.kv.share))
    offloaded = with_offload(before, plan, "flexgen: compute=device, " if copies else "flexgen: ")
    drafters = tuple(
        replace(drafter, system=placed(drafter.system, plan)) if _has_placeholder(drafter.system) else drafter
        for drafter in system.drafters
    )
    return replace(offloaded, passes=(*offloaded.passes, *system.passes[at + 1 :]), drafters=drafters)


def _has_placeholder(system: System) -> bool:
    return any(applied.name == NAME for applied in system.passes)
