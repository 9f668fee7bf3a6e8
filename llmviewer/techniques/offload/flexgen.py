"""`--offload flexgen`: the placement on device, host and disk, and who computes with it, chosen for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from llmviewer.analysis import placement
from llmviewer.analysis.placement import NOTHING, Cost, Problem, Shares
from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request, prefill
from llmviewer.hardware.chip import Figure, Host
from llmviewer.models.model import Model
from llmviewer.ops.gemm import is_routed
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.offload.places import OffloadShares
from llmviewer.techniques.offload.plan import HostWork, Offload, Overlap, with_host, with_offload
from llmviewer.techniques.technique import Change

#: Which of the shares wc, wd, cc, cd, hc, hd a choice leaves to the program.
Free = tuple[bool, ...]
ALL: Free = (True,) * len(NOTHING)
#: Weights as given, the rest free.
WITHOUT_WEIGHTS: Free = (False, False, True, True, True, True)
#: The host also computes with weights in its memory: of routed experts, or of layers as given.
COMPUTES_EXPERTS: Free = (True, False, True, False, True, True)
COMPUTES_LAYERS: Free = (False, False, True, False, True, True)
#: Every tensor is copied to the device, while layers compute.
COPIES = Offload(head=False)
#: Optima with layers on the host that are priced exactly: their programs are interpolated over the number of layers.
PRICED_LAYERS = 4


@frozen(eq=False)
class Search:
    """The search for the fastest plan of a request.

    layers: of the model.  experts: whether some are routed.  counts: numbers of GPU batches, ascending.  compute: what
    the host may compute at most.  program: plan and free shares -> linear program; cost: plan -> its cost.  Both raise
    UserError where the host cannot compute a plan, such as layers of several devices.
    """

    layers: int
    experts: bool
    compute: HostWork
    counts: tuple[int, ...]
    program: Callable[[Offload, Free], Problem]
    cost: Callable[[Offload], Cost]

    def best(self) -> Offload:
        """The fastest plan that fits; where nothing fits, the one that leaves most memory on the device."""
        copies = self.program(self._whole, ALL)
        optimum = copies.solve()
        plans = [] if optimum is None else [with_shares(self._whole, optimum, ALL)]
        copied = self._fastest(plans)
        found = min(copied, self._fastest(self._others()), key=_time)
        for count in self.counts[1:]:
            divided = replace(COPIES, gpu_batches=count)
            here = self._cost(divided)  # weights are read once for every GPU batch
            if here is None or here.whole_s >= _time(found):
                break
            before, copied = copied, self._fastest(self._optima(self._divided(divided)))
            found = min(found, copied, key=_time)
            if _time(before) <= _time(copied) < np.inf:
                break
        if found[0] is not None:
            return found[0]
        most = replace(self._whole, gpu_batches=self.counts[-1])
        return with_shares(most, copies.most_offloaded(), ALL)

    @property
    def _whole(self) -> Offload:
        """The plan that copies every tensor, with the fewest GPU batches."""
        return replace(COPIES, gpu_batches=self.counts[0])

    @property
    def _experts(self) -> tuple[bool, ...]:
        """Whether the shares are those of routed experts alone: both ways of a model that has some."""
        return (False, True) if self.experts else (False,)

    def _fastest(self, plans: Iterable[Offload]) -> tuple[Offload | None, float]:
        """The fastest of the plans that fit, and its time [s]; none takes for ever."""
        priced = [(plan, cost.whole_s) for plan in plans if (cost := self._cost(plan)) and cost.fits]
        return min(priced, key=_time, default=(None, np.inf))

    def _optima(self, choices: Iterable[tuple[Offload, Free]]) -> Iterator[Offload]:
        """The optimum of every choice that the host can compute and that fits."""
        for plan, free in choices:
            program = self._program(plan, free)
            shares = program.solve() if program else None
            if shares is not None:
                yield with_shares(plan, shares, free)

    def _divided(self, plan: Offload) -> Iterator[tuple[Offload, Free]]:
        """Choices for several GPU batches, whose weights the host does not read once for each."""
        for experts in self._experts:
            yield replace(plan, experts=experts), ALL
            if self.compute is not HostWork.NOTHING:
                yield replace(plan, experts=experts, delegates=True), ALL

    def _others(self) -> Iterator[Offload]:
        """Optima of the other choices.

        Copies of whole layers (overlap=layer) are left out: the sum over layers of their slowest resource is at least
        the slowest sum, and their buffers are larger.
        """
        yield from self._optima(self._choices())
        if self.compute is HostWork.LAYERS:
            yield from self._layers_on_host()

    def _choices(self) -> Iterator[tuple[Offload, Free]]:
        copies = self._whole
        waits = replace(copies, overlap=Overlap.NOTHING)  # needs one buffer instead of two
        for weights in (OffloadShares(host=1.0), OffloadShares(disk=1.0)):
            for plan in (copies, waits):
                yield replace(plan, weights=weights, head=True), WITHOUT_WEIGHTS
        for experts in self._experts:
            if experts:
                yield replace(copies, experts=True), ALL
                if self.compute is HostWork.LAYERS:
                    yield replace(copies, experts=True, on_host=True), COMPUTES_EXPERTS
            yield replace(waits, experts=experts), ALL
            if self.compute is not HostWork.NOTHING:
                yield replace(copies, experts=experts, delegates=True), ALL

    def _layers_on_host(self) -> Iterator[Offload]:
        """Optima for every number of layers on the host, by a program between those of one layer and of all."""
        one, every = (self._program(self._with_layers(count), COMPUTES_LAYERS) for count in (1, self.layers))
        if one is None or every is None:
            return
        found = []
        for count in range(1, self.layers + 1):
            program = one.between((count - 1) / max(self.layers - 1, 1), every)
            shares = program.solve()
            if shares is not None:
                plan = with_shares(self._with_layers(count), shares, COMPUTES_LAYERS)
                found.append((program.cost(shares).time_s, count, plan))
        yield from (plan for *_, plan in sorted(found, key=lambda one: one[:2])[:PRICED_LAYERS])

    def _with_layers(self, count: int) -> Offload:
        return replace(self._whole, on_host=True, weights=OffloadShares(host=count / self.layers), head=True)

    def _program(self, plan: Offload, free: Free) -> Problem | None:
        """The program of a choice; with the cache on the device where the host cannot attend over it."""
        for kv in (True, False):
            try:
                return self.program(plan, tuple(may and (kv or at not in (2, 3)) for at, may in enumerate(free)))
            except UserError:
                continue
        return None

    def _cost(self, plan: Offload) -> Cost | None:
        try:
            return self.cost(plan)
        except UserError:
            return None


def _time(found: tuple[Offload | None, float]) -> float:
    return found[1]


def with_shares(plan: Offload, shares: Shares, free: Free) -> Offload:
    """The plan with the shares that it leaves free."""
    weights, kv, activations = (OffloadShares(host=shares[k], disk=shares[k + 1]) for k in (0, 2, 4))
    return replace(plan, weights=weights if free[0] else plan.weights, kv=kv, activations=activations)


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
