"""`--offload flexgen`: the placement that a linear program finds for the request."""

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
from llmviewer.techniques.offload.plan import Offload, with_offload, with_host
from llmviewer.techniques.technique import Change

#: Stands among the passes until the request is known.
NAME = "offload(flexgen)"


def flexgen(beside: Host, figures: Mapping[str, Figure]) -> Change:
    """Shares of weights, cache and hidden states on device, host and disk that minimise the time of the request.

    Layers stream while the one before computes; prefill and generation each take as long as their slowest resource,
    kernels, link in, link out, host memory or disk, summed over layers.  What of it is placed is what a batch holds at
    its end.  Source: FlexGen, arXiv 2303.06865, section 4.3: its program, with the counts of this model.
    """

    def change(system: System) -> System:
        hosted = with_host(system, beside, figures)
        marked = (*system.passes, AppliedTechnique(name=NAME, make=lambda _: as_built))
        return replace(hosted, passes=marked, copies_beside=True, policy=_policy)

    return change


def _policy(model: Model, system: System, request: Request, token_budget: float) -> System:
    """The system with the best placement for the request."""
    found = placement.problem(model, request, token_budget, lambda shares: _placed(system, shares)).solve()
    return replace(_placed(system, found), policy=None)


def _placed(system: System, shares: Shares) -> System:
    """The system with its mark replaced by a placement; what drafts from the model's own weights finds them there."""
    at = [applied.name for applied in system.passes].index(NAME)
    weights, kv, activations = (OffloadShares(host=shares[k], disk=shares[k + 1]) for k in (0, 2, 4))
    plan = Offload(weights=weights, kv=kv, activations=activations, head=False)
    before = replace(system, passes=system.passes[:at])
    there = with_offload(before, plan, "flexgen: ")
    drafters = tuple(
        replace(one, system=_placed(one.system, shares)) if _is_marked(one.system) else one for one in system.drafters
    )
    return replace(there, passes=(*there.passes, *system.passes[at + 1 :]), drafters=drafters)


def _is_marked(system: System) -> bool:
    return any(applied.name == NAME for applied in system.passes)
