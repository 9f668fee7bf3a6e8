"""STAGE and OPERATOR objects of one point, read by every view of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count
from llmviewer.core.ir import Access, Role
from llmviewer.core.workload import Request, kept_tokens
from llmviewer.hardware.chip import Chip
from llmviewer.result import bounds
from llmviewer.result.describe import number
from llmviewer.serving.encoded_inputs import START_TOKENS
from llmviewer.serving.generation import AUTOREGRESSIVE
from llmviewer.serving.schedule import Schedule
from llmviewer.timing.roofline import bound

#: A count of all passes -> its value for the selected passes of one point.
ValueOf = Callable[[Count], float]
#: Fields of a stage that are empty where none of it runs.
DICTIONARIES = ("time_by_bound_s", "time_by_kernel_limit_s", "served_s", "served_bounds", "overlap_s")
#: Level -> [low, high]; None for ideal times.
Interval = dict[str, list[int | float | None]] | None


def value_at(values: Count, point: int) -> float:
    """The value of one point; a scalar is the same at every point."""
    if not isinstance(values, np.ndarray):
        return float(values)
    return float(values.item(point if values.size > 1 else 0))


def request_at(analysis: Analysis, point: int) -> Request:
    """The request of one point."""
    names = ("batch_size", "input_len", "output_len")
    return Request(**{name: value_at(getattr(analysis.request, name), point) for name in names})


def system_at(analysis: Analysis, point: int) -> System:
    """The system of one point, with its own hypothetical chip and generation scheme."""
    system = analysis.system
    if system.generation is not AUTOREGRESSIVE:
        system = system.generating(system.generation.at_points(np.array([point])))
    return system.at(point)


def stage_object(analysis: Analysis, name: str, point: int) -> dict[str, Any]:
    """The STAGE object of `prefill` or `decode`: totals, and operators for one layer each."""
    if name == "decode" and analysis.model.is_encoder:
        return _no_stage()
    totals, chip = analysis.evaluation, analysis.system.at(point).chip
    at, largest = values_of_stage(analysis.schedule, name, point)
    rows = tuple(row for row in totals.rows if does_run(row, at))
    operators = [
        operator_object(row, chip, at, largest) | {"time_interval_s": found}
        for row, found in zip(rows, _operator_intervals(analysis, rows, at), strict=True)
    ]
    engine = {term: at(seconds) for term, seconds in totals.served}
    shown = tuple(zip(rows, operators, strict=True))
    resources = bounds.time_by_bound(shown, at, totals.copying, engine)
    new, cached = _sizes_of_stage(analysis, name, point)
    return {
        "time_s": number(at(totals.time_s)),
        "time_interval_s": _stage_interval(analysis, name, point),
        "ideal_time_s": number(at(totals.ideal_time_s)),
        "flops": number(at(totals.flops)),
        "matmul_flops": number(at(totals.matmul_flops)),
        "traffic_bytes": number(at(totals.traffic_bytes)),
        "bound": max(resources, key=lambda name: resources[name]),
        "time_by_bound_s": {bound: number(seconds) for bound, seconds in resources.items()},
        "time_by_kernel_limit_s": {
            limit: number(seconds) for limit, seconds in bounds.time_by_kernel_limit(operators, engine).items()
        },
        "served_s": {term: number(seconds) for term, seconds in engine.items()},
        "served_bounds": bounds.engine_bounds(shown, engine),
        "overlap_s": {layer.block.name: number(at(layer.hidden_s)) for layer in totals.copying},
        "new_tokens": number(new),
        "cached_tokens": number(kept_tokens(cached, analysis.system.kv_cache.kept)),
        "operators": operators,
    }


def _sizes_of_stage(analysis: Analysis, name: str, point: int) -> tuple[float, float]:
    """New tokens of a sequence in a stage, all of its prompt in prefill, and those in its cache."""
    prompt, generation = value_at(analysis.request.input_len, point), analysis.system.generation
    found = value_at(analysis.system.kv_cache.prefix_hit(prompt), 0)
    if generation.denoising is not None and (name == "decode" or generation.denoising.whole):
        plan = analysis.schedule
        at = plan.prefill_passes + point if name == "decode" else int(plan.prefill_starts[point])
        (group,) = plan.step.groups
        return value_at(group.new_tokens, at), value_at(group.cached_tokens, at)
    if name == "prefill":
        return prompt - found, found
    cached = START_TOKENS if analysis.model.encoder is not None else prompt - 1.0
    return value_at(generation.shape.new_tokens, point), cached


def _no_stage() -> dict[str, Any]:
    """The decode STAGE of an encoder, which never runs: no operators, nothing moved or computed."""
    counts = ("time_s", "ideal_time_s", "flops", "matmul_flops", "traffic_bytes", "new_tokens", "cached_tokens")
    empty: dict[str, Any] = {name: {} for name in DICTIONARIES}
    return {**dict.fromkeys(counts, 0), "time_interval_s": None, "bound": "", **empty, "operators": []}


def values_of_stage(plan: Schedule, stage: str, point: int) -> tuple[ValueOf, ValueOf]:
    """Functions from a count of all passes to its sum over a point's passes of a stage, and to their largest value."""
    decoding = stage == "decode"
    only = plan.prefill_passes + point if decoding else point
    if not decoding and (plan.prefill_passes != plan.points or plan.repeats[point] != 1.0):
        return (lambda count: float(plan.prefill(count)[point])), (lambda count: float(plan.prefill_max(count)[point]))

    def value(count: Count) -> float:
        """The value of the only pass; plain numbers are many, and need no array."""
        return count if type(count) is float else value_at(count, only)

    return value, value


def operator_object(row: TimedOperator, chip: Chip, at: ValueOf, largest: ValueOf) -> dict[str, Any]:
    """The OPERATOR object of one layer, without interval.  at: sum over the stage's passes; largest: largest pass."""
    operator = row.operator
    rows, *others = operator.output_shape

    def total(value: Count) -> int | float | None:
        return number(at(value))

    flops, ideal_s, traffic = at(operator.flops), at(row.ideal.time_s), at(row.traffic_bytes)
    resources = {name: at(seconds) for name, seconds in row.timing.resources}
    roof = {name: at(seconds) for name, seconds in row.ideal.resources}
    matrix = bool(np.count_nonzero(operator.matmul_flops))
    # softmax of a fused kernel runs on other units; its FLOPs must not raise the matrix roof
    peak = chip.matrix_rate(operator.compute) if matrix else np.inf
    return {
        "name": operator.name,
        "block": row.block.name,
        "kind": operator.kind.value,
        "layers": row.block.repeats,
        "flops": number(flops),
        "matmul_flops": total(operator.matmul_flops),
        "traffic_bytes": number(traffic),
        "weight_read_bytes": total(operator.read_bytes(Role.WEIGHT)),
        "activation_read_bytes": total(operator.read_bytes(Role.ACTIVATION)),
        "activation_write_bytes": total(operator.write_bytes(Role.ACTIVATION)),
        "kv_read_bytes": total(operator.read_bytes(Role.CACHE)),
        "kv_write_bytes": total(operator.write_bytes(Role.CACHE)),
        "arithmetic_intensity": number(flops / traffic) if traffic else None,
        "attainable_flops_per_s": number(min(flops / ideal_s, peak)) if ideal_s else None,
        "bound": bound(resources, roof),
        "kernel_limit": bounds.kernel_limit(operator, resources, roof),
        "time_s": total(row.timing.time_s),
        "time_interval_s": None,
        "ideal_time_s": number(ideal_s),
        "time_by_resource_s": {name: number(seconds) for name, seconds in resources.items() if seconds},
        "inputs": _names(operator.reads, at),
        "outputs": _names(operator.writes, at),
        "output_shape": [total(rows), *(number(largest(dim)) for dim in others)],
        "compute_dtype": chip.compute_dtype(operator.compute) if matrix else "fp32",
    }


def _names(accesses: Iterable[Access], at: ValueOf) -> list[str]:
    """Names of activations and caches with nonzero accesses."""
    moved = (a.tensor.name for a in accesses if a.tensor.role is not Role.WEIGHT and at(a.elements) > 0.0)
    return list(dict.fromkeys(moved))


def _stage_interval(analysis: Analysis, stage: str, point: int) -> Interval:
    if analysis.calibration is None:
        return None
    from llmviewer.result import interval  # ideal times have no interval

    return interval.levels(interval.stage_bounds(analysis, stage), point)


def _operator_intervals(analysis: Analysis, rows: Sequence[TimedOperator], at: ValueOf) -> list[Interval]:
    if analysis.calibration is None:
        return [None] * len(rows)
    from llmviewer.result import interval

    return [interval.levels(interval.operator_bounds(analysis, row, at)) for row in rows]


def does_run(row: TimedOperator, at: ValueOf) -> bool:
    """Whether an operator runs in the selected passes; either a fused kernel or the operators it replaces do."""
    if not isinstance(row.operator.where, float) and not at(row.operator.where) > 0.0:
        return False
    return at(row.timing.time_s) > 0.0
