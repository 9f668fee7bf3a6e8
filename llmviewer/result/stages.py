"""STAGE and OPERATOR objects of one point, read by every view of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import TimedOperator
from llmviewer.analysis.system import RuleOutcome, System
from llmviewer.core.counts import Array, Count
from llmviewer.core.ir import Access, Graph, Operator, Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request, Step, kept_tokens
from llmviewer.hardware.chip import Chip
from llmviewer.result.describe import number
from llmviewer.serving.generation import AUTOREGRESSIVE
from llmviewer.serving.schedule import START_TOKENS, Schedule
from llmviewer.timing.engine_work import changed_kernels
from llmviewer.timing.roofline import OVERHEAD, bound, slowest

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
        for row, resource, spent in counted if taken else ():
            if runs and runs(row.operator):
                summed[resource] += seconds * spent / taken
                added += seconds * spent / taken
    return added


def _add_gaps(summed: dict[str, float], seconds: float) -> None:
    """Add time between kernels to `overhead`; if negative (kernels faster than the profile's), scale all resources."""
    if seconds >= 0.0:
        summed[OVERHEAD] = summed.get(OVERHEAD, 0.0) + seconds
        return
    taken = sum(summed.values())
    for resource in summed:
        summed[resource] *= 1.0 + seconds / taken


def engine_bounds(rows: Rows, engine: Mapping[str, float]) -> dict[str, str]:
    """Bound of each engine term: that of most time of the kernels it changes, overhead between kernels."""
    found = {}
    operators = [(row, shown["bound"], shown["time_s"] * shown["layers"]) for row, shown in rows]
    for term in engine:
        runs, spent = changed_kernels(term), dict[str, float]()
        for row, resource, seconds in operators if runs else ():
            if runs and runs(row.operator):
                spent[resource] = spent.get(resource, 0.0) + seconds
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
    resources = time_by_bound(shown, at, totals.copying, engine)
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
            limit: number(seconds) for limit, seconds in time_by_kernel_limit(operators, engine).items()
        },
        "served_s": {term: number(seconds) for term, seconds in engine.items()},
        "served_bounds": engine_bounds(shown, engine),
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
        "kernel_limit": kernel_limit(operator, resources, roof),
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


def fusion_outcomes(analysis: Analysis, point: int) -> list[dict[str, Any]]:
    """Outcome of every fusion rule and candidate: rule, block, operators, kernel, prefill, decode, reason."""
    if all(applied.explain is None for applied in analysis.system.passes):
        return []
    plan = analysis.schedule
    passes = np.flatnonzero(plan.point_of_pass[: plan.shown] == point)
    chip = analysis.system.chip
    if chip.points > 1:
        chip = chip.spread(np.full(len(passes), float(point)))
    graph: Graph = analysis.model.graph(Step(tuple(group.select(passes) for group in plan.step.groups)))
    found: list[RuleOutcome] = []
    for applied in analysis.system.passes:
        if applied.explain is not None:
            found += applied.explain(graph, chip)
        graph = applied.make(chip)(graph)
    return [_row(outcome, len(passes)) for outcome in found]


def assumptions(rows: list[dict[str, Any]], chip: str) -> list[str]:
    """Assumptions of the result that come from rules applied without published chip figures."""
    if not any(row["assumed"] for row in rows):
        return []
    return [f"on-chip memory per compute unit: unknown for {chip}, tiles of fused operators are assumed to fit"]


def _row(outcome: RuleOutcome, passes: int) -> dict[str, Any]:
    """One row; the last pass is the decode step, the passes before it are the prefill."""
    where: Array = np.broadcast_to(np.asarray(outcome.where, dtype=np.float64), (passes,))
    return {
        "rule": outcome.rule,
        "block": outcome.block,
        "operators": list(outcome.operators),
        "kernel": outcome.kernel,
        "prefill": _frequency(where[:-1]),
        "decode": _frequency(where[-1:]),
        "reason": outcome.reason,
        "assumed": outcome.assumed,
    }


def _frequency(where: Array) -> str:
    share = float(np.mean(where))
    return "always" if share == 1.0 else "never" if share == 0.0 else "in some passes"
