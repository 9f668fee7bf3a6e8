"""FlexGen's linear program: the placement of weights, KV cache and hidden states that minimises a request's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from llmviewer.analysis.capacity import memory_of, memory_of_passes
from llmviewer.analysis.evaluation import evaluate, passes_of, system_per_pass
from llmviewer.analysis.memory import Memory
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError, missing_extra
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.models.model import Model

#: Kinds of tensors and the places they may go to; the rest of each stays on the device.
KINDS = ("weights", "kv", "activations")
PLACES = ("host", "disk")
#: Share of every kind at every place, in the order wc, wd, cc, cd, hc, hd of the paper.
Shares: TypeAlias = tuple[float, ...]
NOTHING: Shares = (0.0,) * (len(KINDS) * len(PLACES))
STAGES = ("prefill", "decode")
#: Digits to which shares are rounded; memory limits are reduced by as much.
DIGITS = 9
#: Tie-breaking cost of shares on the host and on its disk: of two equally fast placements, the one that moves less.
TIE_COST = (1e-9, 2e-9)


@frozen(eq=False)
class Cost:
    """Cost of a placement: seconds by stage and resource, bytes on the device and on the host.

    whole_s: time of the request with embedding and head, inf where it was not computed; fits: whether the memory holds
    it.
    """

    seconds: dict[tuple[str, str], float]
    device_bytes: float
    host_bytes: float
    whole_s: float = np.inf
    fits: bool = False

    def towards(self, share: float, other: Cost, start: Cost | None = None) -> Cost:
        """The cost plus a share of the way from `start`, by default this cost, to another one."""
        start = start or self
        names = self.seconds.keys() | other.seconds.keys() | start.seconds.keys()
        return Cost(
            seconds={name: self._second(name) + share * (other._second(name) - start._second(name)) for name in names},
            device_bytes=self.device_bytes + share * (other.device_bytes - start.device_bytes),
            host_bytes=self.host_bytes + share * (other.host_bytes - start.host_bytes),
        )

    def _second(self, name: tuple[str, str]) -> float:
        return self.seconds.get(name, 0.0)

    @property
    def time_s(self) -> float:
        """Time of prefill and generation, each bound by its slowest resource [s]."""
        return sum(max(value for (of, _), value in self.seconds.items() if of == stage) for stage in STAGES)


@frozen(eq=False)
class Problem:
    """The program: minimise prefill and generation time over shares, within the memory of device and host.

    one_each: costs where one share is 1; bytes and the seconds of each resource are linear in the shares, and buffers
    of the device are taken to add up.  free: which shares may be above 0.
    """

    all_here: Cost
    one_each: tuple[Cost, ...]
    free: tuple[bool, ...]
    device_bytes: float
    host_bytes: float

    def cost(self, shares: Shares) -> Cost:
        """The cost of a placement by its shares."""
        found = self.all_here
        for share, one in zip(shares, self.one_each, strict=True):
            found = found.towards(share, one, self.all_here)
        return found

    def between(self, share: float, other: Problem) -> Problem:
        """The program whose costs are a share of the way from this one's to another one's."""
        pairs = zip(self.one_each, other.one_each, strict=True)
        return replace(
            self,
            all_here=self.all_here.towards(share, other.all_here),
            one_each=tuple(mine.towards(share, its) for mine, its in pairs),
        )

    def most_offloaded(self) -> Shares:
        """The placement that leaves most memory on the device."""
        on_disk = (place == "disk" for _ in KINDS for place in PLACES)
        return tuple(
            float(last and one.device_bytes < self.all_here.device_bytes)
            for last, one in zip(on_disk, self.one_each, strict=True)
        )

    def solve(self) -> Shares | None:
        """The optimum found by HiGHS; None where nothing fits.

        Variables: the shares, the time of prefill, the time of generation.
        """
        linprog = _linprog()
        count = len(NOTHING)
        rows, limits = self._rows()
        least = np.array(TIE_COST * len(KINDS)) * max(self.all_here.time_s, 1e-12)
        found: Any = linprog(
            np.concatenate((least, np.ones(len(STAGES)))),
            A_ub=rows,
            b_ub=limits,
            bounds=[(0.0, float(free)) for free in self.free] + [(0.0, None)] * len(STAGES),
            method="highs",
        )
        if not found.success:
            return None
        shares: list[float] = np.round(np.clip(found.x[:count], 0.0, 1.0), DIGITS).tolist()
        return tuple(share + 0.0 for share in shares)  # no minus zero

    def _rows(self) -> tuple[Array, Array]:
        """Constraints A x <= b: shares of a kind sum to at most 1, memory limits, resources within their stage."""
        count, rows, limits = len(NOTHING), [], []
        stages = np.eye(len(STAGES))
        for kind in range(len(KINDS)):
            of_kind = [float(at // len(PLACES) == kind) for at in range(count)]
            rows.append(np.array([*of_kind, *np.zeros(len(STAGES))]))
            limits.append(1.0)
        for name, memory in (("device_bytes", self.device_bytes), ("host_bytes", self.host_bytes)):
            if np.isfinite(memory):
                limit = memory * (1.0 - 10.0 ** (1 - DIGITS))
                here = getattr(self.all_here, name)
                rows.append(np.array([*(getattr(one, name) - here for one in self.one_each), *np.zeros(len(STAGES))]))
                limits.append(limit - here)
        names = sorted({name for cost in (self.all_here, *self.one_each) for name in cost.seconds})
        for stage, resource in names:
            here = self.all_here.seconds.get((stage, resource), 0.0)
            each = [one.seconds.get((stage, resource), 0.0) - here for one in self.one_each]
            rows.append(np.array([*each, *-stages[STAGES.index(stage)]]))
            limits.append(-here)
        return np.array(rows), np.array(limits)


def problem(
    model: Model,
    request: Request,
    token_budget: float,
    build: Callable[[Shares], System],
    free: tuple[bool, ...] = (True,) * len(NOTHING),
) -> Problem:
    """The program of one request.  build: shares -> system with that placement."""
    sizes = [np.size(size) for size in (request.batch_size, request.input_len, request.output_len)]
    units = tuple(tuple(float(at == one) for at in range(len(NOTHING))) for one in range(len(NOTHING)))
    system = build(NOTHING)
    if max(*sizes, system.chip.points) > 1:
        raise UserError(
            "--offload flexgen finds the placement of one request at a time; give single numbers, or the shares"
        )
    here, held = _cost_and_memory(model, system, request, token_budget)
    return Problem(
        all_here=here,
        one_each=tuple(
            cost_of(model, build(unit), request, token_budget) if may else here
            for unit, may in zip(units, free, strict=True)
        ),
        free=free,
        device_bytes=float(np.max(held.utilization_bytes)),
        host_bytes=held.host_capacity_bytes,
    )


def cost_of(model: Model, system: System, request: Request, token_budget: float) -> Cost:
    """Cost of one placement: seconds of the layers, and of the whole passes as `whole_s`."""
    return _cost_and_memory(model, system, request, token_budget)[0]


def _cost_and_memory(model: Model, system: System, request: Request, token_budget: float) -> tuple[Cost, Memory]:
    plan = passes_of(model, system, request, token_budget, None)
    evaluation = evaluate(model, system_per_pass(system, plan), plan.step)
    repeats = float(np.max(system.parallelism.in_flight(request))) / float(np.max(system.generation.tokens))
    passes: dict[str, Callable[[Count], Array]] = {
        "prefill": plan.prefill,
        "decode": lambda count: plan.decode_sum(count) * repeats,
    }
    kernels = evaluation.sum(lambda row: row.timing.time_s if row.block.is_layer else 0.0)
    for layer in evaluation.copying:  # their copies are resources of their own
        kernels = kernels - (layer.serial_s - layer.kernels_s) * float(layer.block.repeats)
    seconds = {(stage, "kernels"): float(of(kernels)[0]) for stage, of in passes.items()}
    for layer in evaluation.copying:
        for resource, taken in layer.resources:
            for stage, of in passes.items():
                if resource != "kernels":
                    key = (stage, resource)
                    seconds[key] = seconds.get(key, 0.0) + float(of(taken)[0]) * layer.block.repeats
    if system.drafters:
        held = memory_of(model, system, request, token_budget)
    else:  # the graph that was timed
        held = memory_of_passes(model, system, system.batching.padded(request), plan, evaluation.graph)
    cost = Cost(
        seconds=seconds,
        device_bytes=float(np.max(held.total_bytes)),
        host_bytes=float(np.max(held.host_bytes)),
        whole_s=sum(float(of(evaluation.time_s)[0]) for of in passes.values()),
        fits=bool(np.all(held.fits)),
    )
    return cost, held


def _linprog() -> Any:
    try:
        from scipy.optimize import linprog  # only FlexGen needs it
    except ImportError as error:
        raise missing_extra("--offload flexgen needs scipy", "offload") from error
    return linprog
