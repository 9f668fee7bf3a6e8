"""Bounds of a stage: its time by the resource that the roofline names, and kernels that another resource limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.core.counts import Count
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind
from llmviewer.timing.engine_work import changed_kernels
from llmviewer.timing.roofline import OVERHEAD, slowest

if TYPE_CHECKING:
    from llmviewer.timing.overlap import LayerWithCopies

#: Resource on which a kernel spends its time although the roofline names another -> what limits the kernel.
LIMITS = {
    "compute": "arithmetic below the peak rate",
    "vector": "vector arithmetic below the peak rate",
    "special": "exponentials below the peak rate",
    "memory": "memory traffic below the bandwidth",
    "l2": "L2 traffic below the bandwidth",
    "link": "exchange below the link's rate",
    "host": "work on the host",
    "disk": "the disk",
}

#: Operators of a stage with their OPERATOR objects.
Rows = Iterable[tuple[TimedOperator, Mapping[str, Any]]]


def kernel_limit(operator: Operator, kernel: Mapping[str, float], roof: Mapping[str, float]) -> str:
    """The limit of a kernel before that of the roofline; empty where it spends its time on the roofline's resource.

    kernel, roof: as of roofline.bound.
    """
    limit = slowest(kernel)
    if limit in (OVERHEAD, slowest(roof)):
        return ""
    if limit in ("compute", "vector") and operator.kind is Kind.GEMM:
        weights = operator.weight_dtype
        if weights.compute != operator.compute:
            return f"unpacking of {int(weights.bits)}-bit weights"
    return LIMITS[limit]


def time_by_bound(
    rows: Rows, at: Callable[[Count], float], copying: tuple[LayerWithCopies, ...], engine: Mapping[str, float]
) -> dict[str, float]:
    """Time of a stage, summed by bound [s]; the largest sum is the bound of the stage.

    copying: layers that overlap copies with kernels; the slowest resource is their bound.  engine: its terms [s]; time
    of its own kernels has the bounds of the operators that they run, all other time is overhead.
    """
    summed: dict[str, float] = {}
    layers = {layer.block.name: layer for layer in copying}
    behind = set()
    for name, layer in layers.items():
        bound, seconds, copies_longest = layer.slowest_copy(at)
        if seconds:
            summed[bound] = summed.get(bound, 0.0) + seconds * layer.block.repeats
        behind |= {name} if copies_longest else set()
    timed = [(row, shown["bound"], at(row.timing.time_s) * row.block.repeats) for row, shown in rows]
    counted = [
        entry
        for entry in timed
        if (name := entry[0].block.name) not in layers
        or not (name in behind or layers[name].is_copy(entry[0].operator))
    ]
    for _, bound, seconds in counted:
        summed[bound] = summed.get(bound, 0.0) + seconds
    if engine:
        left = sum(engine.values()) - sum(at(layers[name].engine_s) * layers[name].block.repeats for name in behind)
        _add_gaps(summed, left - _add_own_kernels(summed, timed, counted, engine))
    return summed


def _add_own_kernels(
    summed: dict[str, float],
    timed: list[tuple[TimedOperator, str, float]],
    counted: list[tuple[TimedOperator, str, float]],
    engine: Mapping[str, float],
) -> float:
    """Add the time of the engine's own kernels to the bounds of the operators they run, and return its sum [s]."""
    added = 0.0
    for term, seconds in engine.items():
        runs = changed_kernels(term)
        taken = sum(spent for row, _, spent in timed if runs(row.operator)) if runs else 0.0
        for row, bound, spent in counted if taken else ():
            if runs and runs(row.operator):
                summed[bound] += seconds * spent / taken
                added += seconds * spent / taken
    return added


def _add_gaps(summed: dict[str, float], seconds: float) -> None:
    """Add time between kernels to `overhead`; if negative (kernels faster than the profile's), scale all resources."""
    if seconds >= 0.0:
        summed[OVERHEAD] = summed.get(OVERHEAD, 0.0) + seconds
        return
    taken = sum(summed.values())
    for bound in summed:
        summed[bound] *= 1.0 + seconds / taken


def engine_bounds(rows: Rows, engine: Mapping[str, float]) -> dict[str, str]:
    """Bound of each engine term: that of most time of the kernels it changes, overhead between kernels."""
    found = {}
    operators = [(row, shown["bound"], shown["time_s"] * shown["layers"]) for row, shown in rows]
    for term in engine:
        runs, spent = changed_kernels(term), dict[str, float]()
        for row, bound, seconds in operators if runs else ():
            if runs and runs(row.operator):
                spent[bound] = spent.get(bound, 0.0) + seconds
        found[term] = slowest(spent) if spent else OVERHEAD
    return found


def time_by_kernel_limit(operators: Iterable[Mapping[str, Any]], engine: Mapping[str, float]) -> dict[str, float]:
    """Time of the kernels of a stage by what limits them before the roofline does, most first [s].

    operators: OPERATOR objects.  engine: its terms, of which those of its own, slower kernels are such limits.
    """
    found: dict[str, float] = {}
    for one in operators:
        if one["kernel_limit"]:
            seconds = one["time_s"] * one["layers"]
            found[one["kernel_limit"]] = found.get(one["kernel_limit"], 0.0) + seconds
    found |= {term: seconds for term, seconds in engine.items() if seconds > 0.0 and changed_kernels(term)}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
