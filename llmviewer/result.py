"""Result: what every view reads.  One schema for the command line, reports and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import __version__, analysis
from llmviewer.analysis import Analysis
from llmviewer.describe import hardware_object, model_object, number, roof_object, sources, unknowns
from llmviewer.evaluation import Row
from llmviewer.fired import assumptions, fired
from llmviewer.ir import Array, Count, Role
from llmviewer.roofline import BOUNDS
from llmviewer.system import System
from llmviewer.workload import Request, kept_tokens

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.analysis/1"
Pick = Callable[[Count], Array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One or many points of an analysis, with provenance.

    to_dict(i): the whole answer for one point.  to_frame(): a row per point.  operators(): a row per operator.
    """

    analysis: Analysis
    warnings: tuple[str, ...] = ()
    token_budget: float = np.inf
    efficiency: str = "ideal"
    techniques: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.analysis.schedule.points

    @property
    def fits(self) -> bool:
        """Whether every point fits in memory."""
        return bool(np.all(self.analysis.memory.fits))

    def to_dict(self, point: int = 0) -> dict[str, Any]:
        """The analysis object of one point."""
        chip, parallelism = self.system(point).chip, self.analysis.system.parallelism
        fusions = fired(self.analysis, point)
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": model_object(self.analysis.model, self.analysis.evaluation.graph),
            "hardware": hardware_object(chip),
            "workload": self._workload(point),
            "parallelism": {"devices": parallelism.devices, **asdict(parallelism)},
            "passes": [applied.name for applied in self.analysis.system.passes],
            "fusions": fusions,
            "efficiency": {"kind": self.efficiency, "profile": None},
            "roofline": roof_object(chip, self.analysis.compute_dtype(point)),
            "provenance": {
                "llmviewer": __version__,
                "model": self.analysis.model.source,
                "hardware": chip.path,
                "times": "roofline of the data sheet, a lower bound",
                "figures": sources(chip),
                "assumed": [
                    *([FRAMEWORK_NOTE] if self.analysis.memory.framework_bytes else []),
                    *unknowns(chip),
                    *assumptions(fusions, chip.name),
                ],
            },
            "stages": {"prefill": self.stage("prefill", point), "decode": self.stage("decode", point)},
            "memory": self.memory(point),
            "metrics": self.metrics(point),
        }

    def to_json(self) -> str:
        """The analysis object of the only point, or `{"schema", "points": [...]}` of several."""
        import json

        if len(self) == 1:
            return json.dumps(self.to_dict(), indent=1)
        points = [self.to_dict(point) for point in range(len(self))]
        return json.dumps({"schema": "llmviewer.sweep/1", "points": points}, indent=1)

    def to_frame(self) -> pd.DataFrame:
        """One row per point: workload, times and metrics, counts of both stages, memory."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    def operators(self) -> pd.DataFrame:
        """One row per point, stage, block and operator."""
        import pandas as pd

        rows = [
            {**self._workload(point), "stage": stage, **row}
            for point in range(len(self))
            for stage in ("prefill", "decode")
            for row in self.stage(stage, point)["operators"]
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False))

    def columns(self) -> dict[str, Any]:
        """Arrays over points, by column name."""
        a, totals = self.analysis, self.analysis.evaluation
        plan, memory = a.schedule, a.memory
        point = np.ones(len(self))
        columns: dict[str, Any] = {
            "model": [a.model.name] * len(self),
            "hardware": [a.system.chip.name] * len(self),
            **{name: [text] * len(self) for name, text in self.techniques.items()},
            "batch_size": (a.request.batch_size * point).astype(int),
            "input_len": (a.request.input_len * point).astype(int),
            "output_len": (a.request.output_len * point).astype(int),
        }
        for name in METRICS:
            columns[name] = np.asarray(getattr(a, name)) * point
        for stage, pick in (("prefill", plan.prefill), ("decode", plan.decode)):
            for name in ("time_s", "flops", "matmul_flops", "traffic_bytes"):
                columns[f"{stage}_{name}"] = pick(getattr(totals, name))
        for name in ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "total_bytes"):
            columns[name] = getattr(memory, name) * point
        columns["fits"] = (memory.fits * point).astype(bool)
        return columns

    def _workload(self, point: int) -> dict[str, Any]:
        request = self.analysis.request
        return {name: number(_at(getattr(request, name), point)) for name in ("batch_size", "input_len", "output_len")}

    def request(self, point: int) -> Request:
        """The request of one point."""
        request = self.analysis.request
        one = partial(_at, point=point)
        return Request(
            batch_size=one(request.batch_size), input_len=one(request.input_len), output_len=one(request.output_len)
        )

    def system(self, point: int) -> System:
        """What one point runs on: of hypothetical chips its own."""
        system = self.analysis.system
        if system.chip.points == 1:
            return system
        return replace(system, chip=system.chip.spread(np.array([float(point)])))

    def stage(self, name: str, point: int = 0) -> dict[str, Any]:
        """A STAGE object: totals, and operators for one layer each."""
        totals, (pick, _) = self.analysis.evaluation, self._picks(name)
        request = self.request(point)
        run = tuple(row for row in self.analysis.evaluation.rows if _runs(row, pick, point))
        rows = [self._operator(row, name, point) for row in run]
        resources = _summed(run, pick, point)
        prompt, cache = request.input_len, self.analysis.system.kv_cache
        found = cache.found(prompt)
        before = found if name == "prefill" else prompt - 1.0
        return {
            "time_s": number(pick(totals.time_s)[point]),
            "ideal_time_s": number(pick(totals.ideal_time_s)[point]),
            "flops": number(pick(totals.flops)[point]),
            "matmul_flops": number(pick(totals.matmul_flops)[point]),
            "traffic_bytes": number(pick(totals.traffic_bytes)[point]),
            "bound": max(resources, key=lambda bound: resources[bound]),
            "time_by_bound_s": {bound: number(seconds) for bound, seconds in resources.items()},
            "new_tokens": number(prompt - found) if name == "prefill" else 1,
            "cached_tokens": number(kept_tokens(before, cache.kept)),
            "operators": rows,
        }

    def _picks(self, stage: str) -> tuple[Pick, Pick]:
        """What the passes of a stage add up to, and the largest of them."""
        plan = self.analysis.schedule
        return (plan.prefill, plan.worst_prefill) if stage == "prefill" else (plan.decode, plan.decode)

    def _operator(self, row: Row, stage: str, point: int) -> dict[str, Any]:
        operator, (pick, widest) = row.operator, self._picks(stage)
        rows, *others = operator.output_shape

        def at(value: Count) -> int | float | None:
            return number(pick(value)[point])

        flops, ideal_s = pick(operator.flops)[point], pick(row.ideal.time_s)[point]
        traffic = pick(row.traffic_bytes)[point]
        matrix, chip = bool(np.any(operator.matmul_flops)), self.system(point).chip
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
            "ideal_time_s": number(ideal_s),
            "inputs": list(dict.fromkeys(operator.inputs)),
            "output_shape": [at(rows), *(number(widest(dim)[point]) for dim in others)],
            "compute_dtype": chip.compute_dtype(operator.compute) if matrix else "fp32",
        }

    def memory(self, point: int = 0) -> dict[str, Any]:
        """The memory object of one point."""
        memory = self.analysis.memory
        fields = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "framework_bytes", "total_bytes")
        model, system, request = self.analysis.model, self.system(point), self.request(point)
        return {
            **{name: number(_at(getattr(memory, name), point)) for name in (*fields, "capacity_bytes", "budget_bytes")},
            "kv_cache_used_bytes": number(_at(memory.kv_cache_used_bytes, point)),
            "kv_cache_waste_bytes": number(_at(memory.kv_cache_waste_bytes, point)),
            "kv_cache_budget_bytes": number(_at(memory.kv_cache_budget_bytes, point)),
            "kv_cache_budget_of_total_bytes": number(_at(memory.left_by_others(memory.utilization_bytes), point)),
            "kv_cache_fraction_of_free": system.cache_fraction,
            "fits": bool(_at(memory.fits, point)),
            "max_batch_size": number(analysis.max_batch_size(model, system, request, self.token_budget)),
            "max_context_len": number(analysis.max_context_len(model, system, request, self.token_budget)),
            "max_concurrent_requests": number(
                analysis.max_concurrent_requests(model, system, request, self.token_budget)
            ),
        }

    def metrics(self, point: int = 0) -> dict[str, Any]:
        """The metrics object of one point."""
        values = {name: number(_at(getattr(self.analysis, name), point)) for name in METRICS}
        rate = float(_at(self.analysis.output_tokens_per_s, point))
        batch = float(_at(self.analysis.request.batch_size, point))
        ordered = {}
        for name, value in values.items():
            ordered[name] = value
            if name == "output_tokens_per_s":
                ordered["output_tokens_per_s_per_user"] = number(rate / batch)
                ordered["output_tokens_per_s_per_device"] = number(rate / self.analysis.system.parallelism.devices)
        return ordered


#: Where the size of what an engine holds beside tensors comes from.
FRAMEWORK_NOTE = (
    f"framework {analysis.FRAMEWORK_BYTES / 2**30:g} GiB: vLLM's non-torch memory on an H100, "
    f"{analysis.FRAMEWORK_SOURCE}"
)
#: Metrics of Analysis that every view shows.
METRICS = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "prefill_mfu", "decode_mbu")


def _at(values: Count, point: int) -> float:
    """The value of one point; a scalar holds for all."""
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    return float(flat[point] if flat.size > 1 else flat[0])


def _runs(row: Row, pick: Pick, point: int) -> bool:
    """Whether the point runs it: either a kernel or the operators it fuses."""
    return isinstance(row.operator.where, float) or bool(pick(row.operator.where)[point] > 0.0)


def _bound(row: Row, pick: Pick, point: int) -> str:
    seconds = {name: float(pick(value)[point]) for name, value in row.timing.resources}
    return max(seconds, key=lambda name: (seconds[name], -BOUNDS.index(name)))


def _summed(rows: tuple[Row, ...], pick: Pick, point: int) -> dict[str, float]:
    """Time by the resource that bounds each operator; the largest bounds the stage."""
    summed: dict[str, float] = {}
    for row in rows:
        bound = _bound(row, pick, point)
        summed[bound] = summed.get(bound, 0.0) + float(pick(row.timing.time_s)[point]) * row.block.times
    return summed
