"""STAGE and OPERATOR objects of one point: what every view of a stage reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.ir import Access, Role
from llmviewer.core.workload import Request, kept_tokens
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import number
from llmviewer.serving.generation import PLAIN as DECODING
from llmviewer.timing.roofline import BOUNDS

if TYPE_CHECKING:
    from llmviewer.timing.overlap import LayerWithCopies

Pick = Callable[[Count], Array]
#: A count of all passes -> that of those in question.
At = Callable[[Count], float]
#: An interval of an object: level -> [low, high]; None where there is no calibration.
Interval = dict[str, list[int | float | None]] | None


def value_at(values: Count, point: int) -> float:
    """The value of one point; a scalar holds for all."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return float(flat[point] if flat.size > 1 else flat[0])


def request_at(analysis: Analysis, point: int) -> Request:
    """The request of one point."""
    names = ("batch_size", "input_len", "output_len")
    return Request(**{name: value_at(getattr(analysis.request, name), point) for name in names})


def system_at(analysis: Analysis, point: int) -> System:
    """What one point runs on: of hypothetical chips its own, and its own way to generate."""
    system = analysis.system
    if system.generation is not DECODING:
        system = system.generating(system.generation.at(np.array([point])))
    return system.at(point)


def stage_object(analysis: Analysis, name: str, point: int) -> dict[str, Any]:
    """A STAGE object: totals, and operators for one layer each."""
    totals, (pick, widest) = analysis.evaluation, _picks(analysis, name)
    at, most, chip = _at(pick, point), _at(widest, point), analysis.system.at(point).chip
    run = tuple(row for row in totals.rows if runs(row, at))
    resources = _summed(run, at, totals.copying)
    served = {term: at(seconds) for term, seconds in totals.served}
    if served:
        _serve(resources, sum(served.values()) - _beside_copies(totals.copying, at))
    prompt = value_at(analysis.request.input_len, point)
    cache, shape = analysis.system.kv_cache, analysis.system.generation.shape
    found = cache.found(prompt)
    before = found if name == "prefill" else prompt - 1.0
    return {
        "time_s": number(at(totals.time_s)),
        "time_interval_s": _stage_interval(analysis, name, point),
        "ideal_time_s": number(at(totals.ideal_time_s)),
        "flops": number(at(totals.flops)),
        "matmul_flops": number(at(totals.matmul_flops)),
        "traffic_bytes": number(at(totals.traffic_bytes)),
        "bound": max(resources, key=lambda bound: resources[bound]),
        "time_by_bound_s": {bound: number(seconds) for bound, seconds in resources.items()},
        "served_s": {term: number(seconds) for term, seconds in served.items()},
        "overlap_s": {layer.block.name: number(at(layer.hidden_s)) for layer in totals.copying},
        "new_tokens": number(prompt - found if name == "prefill" else value_at(shape.new_tokens, point)),
        "cached_tokens": number(kept_tokens(before, cache.kept)),
        "operators": [
            operator_object(row, chip, at, most) | {"time_interval_s": _operator_interval(analysis, row, pick, point)}
            for row in run
        ],
    }


def _beside_copies(copying: tuple[LayerWithCopies, ...], at: At) -> float:
    """What of an engine's terms lies in layers that wait for longer copies [s]."""
    return sum(at(layer.engine_s) * layer.block.repeats for layer in copying if layer.waits(at)[2])


def _serve(resources: dict[str, float], seconds: float) -> None:
    """Enter what an engine adds; where its own kernels take less than those of the profiles, all resources do."""
    if seconds >= 0.0:
        resources["overhead"] = resources.get("overhead", 0.0) + seconds
        return
    taken = sum(resources.values())
    for bound in resources:
        resources[bound] *= 1.0 + seconds / taken


def _picks(analysis: Analysis, stage: str) -> tuple[Pick, Pick]:
    """What the passes of a stage add up to, and the largest of them."""
    plan = analysis.schedule
    return (plan.prefill, plan.worst_prefill) if stage == "prefill" else (plan.decode, plan.decode)


def _at(pick: Pick, point: int) -> At:
    return lambda count: float(pick(count)[point])


def operator_object(row: TimedOperator, chip: Chip, at: At, widest: At) -> dict[str, Any]:
    """An OPERATOR object without its interval, for one layer.  at: what its passes add up to; widest: their largest."""
    operator = row.operator
    rows, *others = operator.output_shape

    def said(value: Count) -> int | float | None:
        return number(at(value))

    flops, ideal_s, traffic = at(operator.flops), at(row.ideal.time_s), at(row.traffic_bytes)
    matrix = bool(np.any(operator.matmul_flops))
    # softmax inside a fused kernel runs beside the matrix units; its FLOPs do not lift the roof of the product
    peak = chip.matrix_rate(operator.compute) if matrix else np.inf
    return {
        "name": operator.name,
        "block": row.block.name,
        "kind": operator.kind.value,
        "layers": row.block.repeats,
        "flops": number(flops),
        "matmul_flops": said(operator.matmul_flops),
        "traffic_bytes": number(traffic),
        "weight_read_bytes": said(operator.read_bytes(Role.WEIGHT)),
        "activation_read_bytes": said(operator.read_bytes(Role.ACTIVATION)),
        "activation_write_bytes": said(operator.write_bytes(Role.ACTIVATION)),
        "kv_read_bytes": said(operator.read_bytes(Role.CACHE)),
        "kv_write_bytes": said(operator.write_bytes(Role.CACHE)),
        "arithmetic_intensity": number(flops / traffic) if traffic else None,
        "attainable_flops_per_s": number(min(flops / ideal_s, peak)) if ideal_s else None,
        "bound": _bound(row, at),
        "time_s": said(row.timing.time_s),
        "time_interval_s": None,
        "ideal_time_s": number(ideal_s),
        "time_by_resource_s": {name: said(seconds) for name, seconds in row.timing.resources if at(seconds)},
        "inputs": _names(operator.reads, at),
        "outputs": _names(operator.writes, at),
        "output_shape": [said(rows), *(number(widest(dim)) for dim in others)],
        "compute_dtype": chip.compute_dtype(operator.compute) if matrix else "fp32",
    }


def _names(accesses: Iterable[Access], at: At) -> list[str]:
    """Activations and caches of which something is moved."""
    moved = (a.tensor.name for a in accesses if a.tensor.role is not Role.WEIGHT and at(a.elements) > 0.0)
    return list(dict.fromkeys(moved))


def _stage_interval(analysis: Analysis, stage: str, point: int) -> Interval:
    if analysis.calibration is None:
        return None
    from llmviewer.result import interval  # the ideal roofline is a bound and needs none

    return interval.levels(interval.of_stage(analysis, stage), point)


def _operator_interval(analysis: Analysis, row: TimedOperator, pick: Pick, point: int) -> Interval:
    if analysis.calibration is None:
        return None
    from llmviewer.result import interval

    return interval.levels(interval.of_row(analysis, row, pick), point)


def runs(row: TimedOperator, at: At) -> bool:
    """Whether it runs: either a kernel or the operators it fuses; what has no work takes no time."""
    if not isinstance(row.operator.where, float) and not at(row.operator.where) > 0.0:
        return False
    return at(row.timing.time_s) > 0.0


def _bound(row: TimedOperator, at: At) -> str:
    seconds = {name: at(value) for name, value in row.timing.resources}
    return max(seconds, key=lambda name: (seconds[name], -BOUNDS.index(name)))


def _summed(rows: tuple[TimedOperator, ...], at: At, copying: tuple[LayerWithCopies, ...]) -> dict[str, float]:
    """Time by the resource that bounds each operator; the largest bounds the stage.

    copying: layers whose copies run beside kernels are bound by the slowest of all, one operator beside another.
    """
    summed: dict[str, float] = {}
    waiting: set[str] = set()
    for layer in copying:
        bound, seconds, alone = layer.waits(at)
        if seconds:
            summed[bound] = summed.get(bound, 0.0) + seconds * layer.block.repeats
        waiting |= {layer.block.name} if alone else set()
    layers = {layer.block.name: layer for layer in copying}
    for row in rows:
        its = layers.get(row.block.name)
        if its is not None and (its.block.name in waiting or its.copies(row.operator)):
            continue
        bound = _bound(row, at)
        summed[bound] = summed.get(bound, 0.0) + at(row.timing.time_s) * row.block.repeats
    return summed
