"""Why a structure that answers a single request in time does not serve the load within the bounds."""

from __future__ import annotations

import numpy as np

from llmviewer.planning.gates import Gate, told
from llmviewer.planning.screen import Bounds, Candidate, Screened, candidates
from llmviewer.planning.workload import Workload


def late_gate(one: Screened, workload: Workload, bounds: Bounds) -> Gate:
    """The bound or the limit that a structure misses in the steady state, by how much."""
    unbounded = candidates(one, workload, Bounds(spare=bounds.spare))
    if not unbounded:
        return _rate_gate(one, workload)
    least = unbounded[0]
    if least.devices > bounds.devices:
        load = f"{workload.users} users" if workload.users else "the rate"
        text = f"{least.devices} devices for {load}, {bounds.devices:g} allowed"
        return Gate(constraint="devices", margin=least.devices - bounds.devices, unit="devices", text=text)
    return _cost_gate(least, bounds)


def _cost_gate(least: Candidate, bounds: Bounds) -> Gate:
    usd = least.usd_per_hour
    if not np.isfinite(usd):
        return Gate(constraint="usd_per_hour", margin=None, unit="usd_per_hour", text="no price of this kind is known")
    text = f"{usd:.4g} $/h for {least.devices} devices, {bounds.usd_per_hour:g} $/h allowed"
    return Gate(constraint="usd_per_hour", margin=usd - bounds.usd_per_hour, unit="usd_per_hour", text=text)


def _rate_gate(one: Screened, workload: Workload) -> Gate:
    """The latency that is exceeded however many replicas share the load."""
    most = float(one.replicas(Bounds())[-1])
    found = one.at(workload, np.array([most]))
    rate = workload.rate / most
    for limit in workload.limits:
        least = float(np.min(getattr(found, limit.metric)))
        if least > limit.seconds:
            name = f"{limit.metric.removesuffix('_s').upper()} {limit.statistic}"
            load = "one user" if workload.users else f"{rate:.2g} requests/s"
            text = f"{name} {told(least)} at {load} of a replica"
            return Gate(constraint="rate", margin=least - limit.seconds, unit="s", text=text)
    return Gate(constraint="rate", margin=None, unit="", text="no single point meets all limits together")
