"""`--offload flexgen`: shares on device, host and disk chosen by a linear program for each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.analysis import placement
from llmviewer.analysis.placement import Shares
from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.ir import as_built
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Host
from llmviewer.hardware.figures import Figure
from llmviewer.models.model import Model
from llmviewer.techniques.offload.places import OffloadShares
from llmviewer.techniques.offload.plan import Offload, with_host, with_offload
from llmviewer.techniques.technique import Change

#: Placeholder among the passes of a system until the request is known.
NAME = "offload(flexgen)"


def flexgen(host: Host, figures: Mapping[str, Figure]) -> Change:
    """Choose the shares of weights, cache and hidden states on device, host and disk that minimise the request's time.

    A layer is copied while the previous one computes; prefill and generation each take as long as their slowest
    resource (kernels, link in, link out, host memory or disk), summed over layers.  The footprint is that of the batch
    at its end.  Source: FlexGen, arXiv 2303.06865, section 4.3: its program, with the counts of this model.
    """

    def change(system: System) -> System:
        hosted = with_host(system, host, figures)
        passes = (*system.passes, AppliedTechnique(name=NAME, make=lambda _: as_built))
        return replace(hosted, passes=passes, copies_beside=True, policy=_policy)

    return change


def _policy(model: Model, system: System, request: Request, token_budget: float) -> System:
    """The system with the best placement for the request."""
    found = placement.problem(model, request, token_budget, lambda shares: _placed(system, shares)).solve()
    return replace(_placed(system, found), policy=None)


def _placed(system: System, shares: Shares) -> System:
    """The system with its placeholder replaced by a placement, also in draft models that use the target's weights."""
    at = [applied.name for applied in system.passes].index(NAME)
    weights, kv, activations = (OffloadShares(host=shares[k], disk=shares[k + 1]) for k in (0, 2, 4))
    plan = Offload(weights=weights, kv=kv, activations=activations, head=False)
    before = replace(system, passes=system.passes[:at])
    offloaded = with_offload(before, plan, "flexgen: ")
    drafters = tuple(
        replace(drafter, system=_placed(drafter.system, shares)) if _has_placeholder(drafter.system) else drafter
        for drafter in system.drafters
    )
    return replace(offloaded, passes=(*offloaded.passes, *system.passes[at + 1 :]), drafters=drafters)


def _has_placeholder(system: System) -> bool:
    return any(applied.name == NAME for applied in system.passes)
