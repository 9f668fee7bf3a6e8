"""STAGE and OPERATOR objects of one point: what every view of a stage reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis import Analysis
from llmviewer.describe import number
from llmviewer.evaluation import Row
from llmviewer.generation import PLAIN as DECODING
from llmviewer.ir import Array, Count, Kind, Operator, Role
from llmviewer.roofline import BOUNDS
from llmviewer.system import System
from llmviewer.workload import Request, kept_tokens

if TYPE_CHECKING:
    from llmviewer.overlap import Layer

Pick = Callable[[Count], Array]
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
    if system.chip.points == 1:
        return system
    return replace(system, chip=system.chip.spread(np.array([float(point)])))


def stage_object(analysis: Analysis, name: str, point: int) -> dict[str, Any]:
    """A STAGE object: totals, and operators for one layer each."""
    totals, (pick, _) = analysis.evaluation, _picks(analysis, name)
    request = request_at(analysis, point)
    run = tuple(row for row in totals.rows if _runs(row, pick, point))
    resources = _summed(run, pick, point, totals.copying)
    served = {term: float(pick(seconds)[point]) for term, seconds in totals.served}
    if served:
        resources["overhead"] = resources.get("overhead", 0.0) + sum(served.values())
    if totals.copying:
        hidden = (float(pick(layer.hidden_s)[point]) * layer.block.times for layer in totals.copying)
        served["copies beside kernels"] = -sum(hidden)
    prompt, cache, shape = request.input_len, analysis.system.kv_cache, analysis.system.generation.shape
    found = cache.found(prompt)
    before = found if name == "prefill" else prompt - 1.0
    return {
        "time_s": number(pick(totals.time_s)[point]),
        "time_interval_s": _stage_interval(analysis, name, point),
        "ideal_time_s": number(pick(totals.ideal_time_s)[point]),
        "flops": number(pick(totals.flops)[point]),
        "matmul_flops": number(pick(totals.matmul_flops)[point]),
        "traffic_bytes": number(pick(totals.traffic_bytes)[point]),
        "bound": max(resources, key=lambda bound: resources[bound]),
        "time_by_bound_s": {bound: number(seconds) for bound, seconds in resources.items()},
        "served_s": {term: number(seconds) for term, seconds in served.items()},
        "new_tokens": number(prompt - found if name == "prefill" else value_at(shape.new_tokens, point)),
        "cached_tokens": number(kept_tokens(before, cache.kept)),
        "operators": [_operator(analysis, row, name, point) for row in run],
    }


def _picks(analysis: Analysis, stage: str) -> tuple[Pick, Pick]:
    """What the passes of a stage add up to, and the largest of them."""
    plan = analysis.schedule
    return (plan.prefill, plan.worst_prefill) if stage == "prefill" else (plan.decode, plan.decode)


def _operator(analysis: Analysis, row: Row, stage: str, point: int) -> dict[str, Any]:
    operator, (pick, widest) = row.operator, _picks(analysis, stage)
    rows, *others = operator.output_shape

    def at(value: Count) -> int | float | None:
        return number(pick(value)[point])

    flops, ideal_s = pick(operator.flops)[point], pick(row.ideal.time_s)[point]
    traffic = pick(row.traffic_bytes)[point]
    matrix, chip = bool(np.any(operator.matmul_flops)), system_at(analysis, point).chip
    # softmax inside a fused kernel runs beside the matrix units; its FLOPs do not lift the roof of the product
    peak = chip.matrix_rate(operator.compute) if matrix else np.inf
    return {
        "name": operator.name,
        "block": row.block.name,
        "kind": operator.kind.value,
        "layers": row.block.times,
        "flops": number(flops),
        "matmul_flops": at(operator.matmul_flops),
        "traffic_bytes": number(traffic),
        "weight_read_bytes": at(operator.read_bytes(Role.WEIGHT)),
        "activation_read_bytes": at(operator.read_bytes(Role.ACTIVATION)),
        "activation_write_bytes": at(operator.write_bytes(Role.ACTIVATION)),
        "kv_read_bytes": at(operator.read_bytes(Role.CACHE)),
        "kv_write_bytes": at(operator.write_bytes(Role.CACHE)),
        "arithmetic_intensity": number(flops / traffic) if traffic else None,
        "attainable_flops_per_s": number(min(flops / ideal_s, peak)) if ideal_s else None,
        "bound": _bound(row, pick, point),
        "time_s": at(row.timing.time_s),
        "time_interval_s": _operator_interval(analysis, row, pick, point),
        "ideal_time_s": number(ideal_s),
        "time_by_resource_s": {name: at(seconds) for name, seconds in row.timing.resources if pick(seconds)[point]},
        "inputs": list(dict.fromkeys(operator.inputs)),
        "outputs": list(dict.fromkeys(operator.outputs)),
        "output_shape": [at(rows), *(number(widest(dim)[point]) for dim in others)],
        "compute_dtype": chip.compute_dtype(operator.compute) if matrix else "fp32",
    }


def _stage_interval(analysis: Analysis, stage: str, point: int) -> Interval:
    if analysis.calibration is None:
        return None
    from llmviewer import interval  # the ideal roofline is a bound and needs none

    return interval.levels(interval.of_stage(analysis, stage), point)


def _operator_interval(analysis: Analysis, row: Row, pick: Pick, point: int) -> Interval:
    if analysis.calibration is None:
        return None
    from llmviewer import interval

    return interval.levels(interval.of_row(analysis, row, pick), point)


def _runs(row: Row, pick: Pick, point: int) -> bool:
    """Whether the point runs it: either a kernel or the operators it fuses; what has no work takes no time."""
    if not isinstance(row.operator.where, float) and not pick(row.operator.where)[point] > 0.0:
        return False
    return bool(pick(row.timing.time_s)[point] > 0.0)


def _bound(row: Row, pick: Pick, point: int) -> str:
    seconds = {name: float(pick(value)[point]) for name, value in row.timing.resources}
    return max(seconds, key=lambda name: (seconds[name], -BOUNDS.index(name)))


def beside(operator: Operator) -> bool:
    """Whether it is a copy that waits for nothing the layer computes."""
    return operator.kind is Kind.COPY and operator.shape is not None


def _summed(rows: tuple[Row, ...], pick: Pick, point: int, copying: tuple[Layer, ...] = ()) -> dict[str, float]:
    """Time by the resource that bounds each operator; the largest bounds the stage.

    copying: layers whose copies run beside kernels are bound by the slowest of all, one operator beside another.
    """
    summed: dict[str, float] = {}
    waiting: set[str] = set()
    for layer in copying:
        bound, seconds, alone = layer.waits(lambda count: float(pick(count)[point]))
        if seconds:
            summed[bound] = summed.get(bound, 0.0) + seconds * layer.block.times
        waiting |= {layer.block.name} if alone else set()
    copied = {layer.block.name for layer in copying}
    for row in rows:
        if row.block.name in waiting or (row.block.name in copied and beside(row.operator)):
            continue
        bound = _bound(row, pick, point)
        summed[bound] = summed.get(bound, 0.0) + float(pick(row.timing.time_s)[point]) * row.block.times
    return summed
