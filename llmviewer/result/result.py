"""The Result class and its JSON schema, read by the command line, reports and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.analysis import capacity, limits
from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.limits import at_start
from llmviewer.analysis.memory import layers_on_host
from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import BY_ENGINE, MEMORY, METRICS, nested
from llmviewer.result import describe, provenance, stages
from llmviewer.result.columns import columns, totals, without_defaults
from llmviewer.result.costs import Costs
from llmviewer.result.describe import number
from llmviewer.result.figures import Figures
from llmviewer.result.provenance import memory_items
from llmviewer.result.stages import fusion_outcomes, request_at, system_at, value_at

if TYPE_CHECKING:
    import pandas as pd

#: A change that saves less of the time of a request than this is none worth making.
LEAST_GAIN = 1.02


@frozen(eq=False)
class Change:
    """One or more options with other values, and the result they would have.

    option: as typed on the command line.  words: the same by name.
    """

    option: str
    result: Result
    words: Mapping[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices that the changed configuration needs."""
        return int(self.result.analysis.system.parallelism.devices)


@frozen(eq=False)
class Verdict:
    """The result of one point and the changes that were tried.

    remedies: for a result that does not fit, the least change of each kind that does.
    changes: for one that fits, every change that was tried.
    """

    result: Result
    remedies: tuple[Change, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def best(self) -> Change | None:
        """The change with the least time of a request on as many devices; None if none saves LEAST_GAIN."""
        return self._best(lambda change: change.devices <= self._devices)

    @property
    def best_with_more_devices(self) -> Change | None:
        """The change with the least time of a request among those that need more devices, if it saves LEAST_GAIN."""
        return self._best(lambda change: change.devices > self._devices)

    @property
    def _devices(self) -> int:
        return int(self.result.analysis.system.parallelism.devices)

    def _best(self, allowed: Callable[[Change], bool]) -> Change | None:
        tried = [change for change in self.changes if allowed(change) and change.result.fits]
        fastest = min(tried, key=lambda change: float(change.result.e2e_s), default=None)
        if fastest is None or float(fastest.result.e2e_s) * LEAST_GAIN > float(self.result.e2e_s):
            return None
        return fastest


SCHEMA = "llmviewer.analysis/1"
STAGES = ("prefill", "decode")
#: Keys of the figures of an engine that is not stated, and of the reason why there are none.
SERVED = ("served", "served_unknown")


@frozen(slots=False, eq=False, repr=False)  # no slots: figures are kept
class Result(Answer):
    """Result of an analysis at one or many points, with provenance.

    Metrics are attributes by their names: ttft_s, tpot_s, e2e_s, output_tokens_per_s, decode_mbu ...
    to_dict(i): the analysis object of one point.  to_frame(): a row per point.  serve: makes the result as the usual
    engine serves the request, or says why none does; None where an engine is stated, and for ideal times.
    costs: prices and emissions; None for the least rented prices.  refusal: why the engine does not start with the
    stated --max-model-len (one point); None if it does.
    """

    QUESTION: ClassVar[str] = "analyze"
    analysis: Analysis
    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    token_budget: float = np.inf
    efficiency: str = "ideal"
    techniques: Mapping[str, str] = field(default_factory=dict)
    serve: Callable[[Result], Result | str] | None = None
    costs: Costs | None = None

    def __len__(self) -> int:
        return self.analysis.schedule.points

    def __repr__(self) -> str:
        points = f"{len(self):,} point{'s' if len(self) > 1 else ''}"
        return f"<Result: {self.analysis.model.name} on {self.analysis.system.hardware}, {self.efficiency}, {points}>"

    @property
    def fits(self) -> bool:
        """Whether every point fits in memory."""
        return bool(np.all(self.analysis.memory.fits))

    @property
    def runs(self) -> bool:
        """Whether every point fits, and the engine starts where --max-model-len is stated."""
        one = self.analysis
        if len(self) == 1 or not self.fits or one.system.engine.max_model_len is None:
            return self.fits and self.refusal is None
        points = ((system_at(one, at), one.memory.at(slice(at, at + 1))) for at in range(len(self)))
        return not any(at_start(one.model, system, memory)["refusal"] for system, memory in points)

    @property
    def ttft_s(self) -> float | Array:
        """Time to the first token [s]; an array if there are several points, as for all metrics."""
        return self._metric("ttft_s")

    @property
    def tpot_s(self) -> float | Array:
        """Mean time per output token after the first [s]; NaN where output_len is 1."""
        return self._metric("tpot_s")

    @property
    def e2e_s(self) -> float | Array:
        """End-to-end latency of a request [s]."""
        return self._metric("e2e_s")

    @property
    def output_tokens_per_s(self) -> float | Array:
        """Output tokens of the whole batch per second of end-to-end latency."""
        return self._metric("output_tokens_per_s")

    @property
    def prefill_mfu(self) -> float | Array:
        """Causal matrix FLOP of prefill over its time x dense peak."""
        return self._metric("prefill_mfu")

    @property
    def decode_mbu(self) -> float | Array:
        """Weight and KV-cache bytes of a decode step over its time x bandwidth."""
        return self._metric("decode_mbu")

    if not TYPE_CHECKING:  # a checker would take any misspelt name for a metric

        def __getattr__(self, name: str) -> float | Array:
            """Any other metric, as `llmviewer.language.quantity.METRICS` declares it."""
            if name in METRICS:
                return self._metric(name)
            raise AttributeError(f"a Result has no attribute {name!r}; metrics: {', '.join(METRICS)}")

    @cached_property
    def figures(self) -> Figures:
        """Metrics by name, arrays over points, each computed when it is first read."""
        return Figures(self.analysis, self.costs)

    def _metric(self, name: str) -> float | Array:
        values = self.figures[name]
        return float(values[0]) if len(self) == 1 else values

    def _check(self, point: int) -> None:
        """Raise UserError for a point that the result does not have."""
        if not 0 <= point < len(self):
            raise UserError(f"point is {quoted(point)}; allowed: 0 to {len(self) - 1}")

    def check_one_kind(self, what: str) -> None:
        """Raise UserError for a result of a split, which `what` does not show."""
        if self.analysis.system.split is not None:
            devices = self.analysis.system.hardware
            raise UserError(f"{what} shows devices of one kind; {devices} are shown by analyze and compare")

    @property
    def memory(self) -> dict[str, Any]:
        """Memory use, capacity and limits of the first point [byte]; `memory_at(i)` for another point."""
        return self.memory_at(0)

    @property
    def operators(self) -> pd.DataFrame:
        """One row per point, stage, block and operator."""
        import pandas as pd

        run = {"model": self.analysis.model.name, "hardware": self.analysis.system.hardware}
        rows = [
            {**run, **self._workload(point), "stage": stage, **row}
            for point in range(len(self))
            for stage, found in {
                **towers(self.images(point)),
                **{name: self.stage(name, point) for name in STAGES},
            }.items()
            for row in found["operators"]
        ]
        return pd.DataFrame(rows)

    def to_dict(self, point: int = 0) -> dict[str, Any]:
        """The analysis object of one point."""
        return {name: part() for name, part in self.parts(point).items()}

    def alone(self) -> dict[str, Any]:
        """The analysis object of the first point without the figures of an engine that is not stated."""
        return {name: part() for name, part in self.parts().items() if name not in SERVED}

    def of_engine(self, point: int = 0) -> dict[str, Any]:
        """The part of the analysis object that `alone` leaves out."""
        unknown = self.as_served if isinstance(self.as_served, str) else None
        return dict(zip(SERVED, (self.served(point), unknown), strict=True))

    def parts(self, point: int = 0) -> dict[str, Callable[[], Any]]:
        """Key of the analysis object -> function that computes its value."""
        self._check(point)
        graph = self.analysis.whole_graph  # first, as fits are selected while operators are timed
        chip, parallelism = system_at(self.analysis, point).chip, self.analysis.system.parallelism
        fusions = fusion_outcomes(self.analysis, point)
        return {
            "schema": lambda: SCHEMA,
            "warnings": lambda: list(self.warnings),
            "model": lambda: describe.model_object(self.analysis.model, graph),
            "hardware": lambda: describe.hardware_object(chip),
            "workload": lambda: self._workload(point),
            "generation": lambda: self._generation(point),
            "batching": lambda: self.analysis.system.batching.name,
            "serving": lambda: self.serving(point),
            **({"devices": lambda: self.devices_at(point)} if self.analysis.system.split else {}),
            **({"images": lambda: self.images(point)} if self.analysis.towers else {}),
            "parallelism": lambda: {"devices": parallelism.devices, **asdict(parallelism)},
            "passes": lambda: [applied.name for applied in self.analysis.system.passes if applied.name],
            "fusions": lambda: fusions,
            "early_exit": lambda: self._early_exit(point),
            "efficiency": lambda: provenance.efficiency_object(self.analysis, self.efficiency, point),
            "roofline": lambda: describe.roof_object(chip, self.analysis.compute_dtype(point)),
            "provenance": lambda: provenance.provenance_object(self.analysis, chip, fusions, point, self.figures.costs),
            "stages": lambda: {name: self.stage(name, point) for name in STAGES},
            "totals": lambda: {name: number(value_at(one, point)) for name, one in totals(self.analysis).items()},
            "memory": lambda: self.memory_at(point),
            "metrics": lambda: self.metrics(point),
            **{name: partial(lambda one: self.of_engine(point)[one], name) for name in SERVED},
        }

    def devices_at(self, point: int = 0) -> list[dict[str, Any]]:
        """The devices of one point with their layers, times and memory; empty where all have even shares."""
        self._check(point)
        if self.analysis.system.split is None:
            return []
        from llmviewer.result.devices import device_objects  # devices with even shares need none

        return device_objects(self.analysis, self.token_budget, point)

    def images(self, point: int = 0) -> list[dict[str, Any]]:
        """The images of every prompt of one point by size, with the stage of the vision tower; empty without any."""
        self._check(point)
        return [
            {
                **asdict(one.images),
                "tokens_per_image": one.tokens,
                "patches_per_image": one.patches,
                "stage": stages.stage_object(tower, "prefill", point),
            }
            for one, tower in self.analysis.towers
        ]

    def serving(self, point: int = 0) -> dict[str, Any]:
        """The serving object of one point: running sequences, queueing, contents of a step."""
        a = self.analysis
        if a.running is None:
            facts = a.system.batching.facts(a.request)
        else:
            reserved = capacity.with_reserved_output(a.system, a.request).output_len
            facts = {**a.times.facts(), "room_output_tokens": reserved}
        return {name: _fact(values, point) for name, values in facts.items()}

    def _generation(self, point: int) -> dict[str, Any] | None:
        """The generation object of one point; None for plain decoding."""
        if self.analysis.system.scheme is None:
            return None
        from llmviewer.result import speculation_report  # plain decoding needs no comparison with itself

        return speculation_report.generation_object(self.analysis, point)

    def _early_exit(self, point: int) -> dict[str, Any] | None:
        """The early_exit object of one point; None without early exit."""
        if not self.analysis.system.applies("early_exit"):
            return None
        from llmviewer.result import speculation_report

        return speculation_report.exit_object(self.analysis, point)

    def to_json(self) -> str:
        """The analysis object for one point, or `{"schema", "points": [...]}` for several."""
        import json

        if len(self) == 1:
            return json.dumps(self.to_dict())
        points = [self.to_dict(point) for point in range(len(self))]
        return json.dumps({"schema": "llmviewer.sweep/1", "points": points})

    def to_frame(self) -> pd.DataFrame:
        """One row per point: workload, times and metrics, counts of both stages, memory; stated options alone."""
        import pandas as pd

        return without_defaults(pd.DataFrame(self.columns()))

    def roofs(self) -> pd.DataFrame:
        """One row per roof of the chip: `roof` compute [FLOP/s] or memory [byte/s], `what`, `rate`."""
        import pandas as pd

        return pd.DataFrame(describe.roofs(self.analysis.system.chip))

    def columns(self) -> dict[str, Any]:
        """Column name -> array over points."""
        return columns(self.figures, self.efficiency, self.techniques)

    def _workload(self, point: int) -> dict[str, Any]:
        request = self.analysis.request
        return {
            name: number(value_at(getattr(request, name), point)) for name in ("batch_size", "input_len", "output_len")
        }

    def stage(self, name: str, point: int = 0) -> dict[str, Any]:
        """The STAGE object of `prefill` or `decode`: totals, and operators for one layer each."""
        self._check(point)
        if name not in STAGES:
            raise unknown("stage", name, STAGES)
        return stages.stage_object(self.analysis, name, point)

    def attribution(self, metric: str, point: int = 0) -> pd.DataFrame:
        """Contributions that add up to ttft_s, tpot_s or e2e_s: columns `name`, `kind`, `seconds`."""
        import pandas as pd

        self._check(point)
        from llmviewer.result.request_time import attribution_rows  # few callers need it

        return pd.DataFrame(attribution_rows(self.analysis, metric, point), columns=["name", "kind", "seconds"])

    def timeline(self, steps: int = 4, point: int = 0) -> list[dict[str, Any]]:
        """Timeline of prefill and the first `steps` decode steps: a row per step, pass, layer and operator.

        Each row has `start_s`, `end_s` [s], its `track`, and its counts in `facts`.
        """
        self._check(point)
        self.check_one_kind("a timeline")
        if self.analysis.towers:
            raise UserError("a timeline shows passes of the language model alone; leave out images")
        from llmviewer.result.timeline.timeline import timeline  # few callers need it

        return [event.row() for event in timeline(self.analysis, steps, point)]

    @property
    def devices_per_stage(self) -> int:
        """Devices that share the layers of one pipeline stage; all run the same operators."""
        return self.analysis.system.parallelism.group

    def memory_at(self, point: int = 0) -> dict[str, Any]:
        """The memory object of one point."""
        self._check(point)
        memory = self.analysis.memory
        model, system, request = self.analysis.model, system_at(self.analysis, point), request_at(self.analysis, point)
        host, here = system.chip.host, memory.at(slice(point, point + 1))
        largest = limits.largest_sizes(model, system, request, self.token_budget, here)
        return {
            **{
                name: number(value_at(getattr(memory, name), point))
                for name in (*MEMORY, "capacity_bytes", "budget_bytes")
            },
            "kv_cache_used_bytes": number(value_at(memory.kv_cache_used_bytes, point)),
            "kv_cache_waste_bytes": number(value_at(memory.kv_cache_waste_bytes, point)),
            "kv_cache_budget_bytes": number(value_at(memory.kv_cache_budget_bytes, point)),
            "kv_cache_budget_of_total_bytes": number(value_at(memory.left_by_others(memory.utilization_bytes), point)),
            "kv_cache_fraction_of_free": system.cache_fraction,
            "host": None if host is None else host.name,
            **({} if host is None else {"host_layers": self._layers_on_host()}),
            "host_bytes": number(value_at(memory.host_bytes, point)),
            "host_capacity_bytes": number(memory.host_capacity_bytes),
            "disk": host.disk.name if host is not None and host.disk is not None else None,
            "disk_bytes": number(value_at(memory.disk_bytes, point)),
            "fits": bool(value_at(memory.fits, point)),
            **{name: number(size) for name, size in largest.items()},
            "cuda_graphs_bytes": number(value_at(memory.cuda_graphs_bytes, point)),
            **{k: number(v) if isinstance(v, float) else v for k, v in at_start(model, system, here).items()},
            "kv_cache_bytes_per_token_per_device": describe.cache_growth(self.analysis.passes.graph)[
                describe.PER_TOKEN
            ],
            "items": memory_items(model, system, here),
            **limits.assumptions(model, system, self.token_budget),
        }

    def _layers_on_host(self) -> dict[str, int]:
        """Layers that the host computes beside the device, or beside all devices of a split."""
        if self.analysis.system.split is None:
            return layers_on_host(self.analysis.passes.graph)
        parts = [layers_on_host(one.graph) for one in self.analysis.evaluation.stages]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def metrics(self, point: int = 0, names: Iterable[str] = METRICS) -> dict[str, Any]:
        """The metrics object of one point.  names: of METRICS that it has."""
        self._check(point)
        values = {name: number(value_at(self.figures[name], point)) for name in names}
        return {**nested(values), "intervals": self.intervals(point)}

    @cached_property
    def as_served(self) -> Result | str | None:
        """The result as the usual engine serves the request, or why there is none; None where there need not be one."""
        return None if self.serve is None else self.serve(self)

    def served(self, point: int = 0) -> dict[str, Any] | None:
        """The metrics of one point as the usual engine of such a chip and model serves it, and whether it fits.

        None where an engine is stated, for ideal times, and where none serves it.
        """
        run = self.as_served
        if not isinstance(run, Result):
            return None
        found, engine = run.metrics(point, BY_ENGINE), run.analysis.system.engine
        named = {"engine": engine.name, "engine_title": engine.called}
        return {**named, **found, "fits": bool(value_at(run.analysis.memory.fits, point))}

    def intervals(self, point: int = 0) -> dict[str, Any]:
        """80 and 95 % intervals of the times of a request; empty for ideal times, which are lower bounds."""
        if self.analysis.calibration is None:
            return {}
        from llmviewer.result import interval

        return {name: interval.levels(found, point) for name, found in interval.metric_bounds(self.analysis).items()}

    def tpot_interval80(self) -> list[int | float | None] | None:
        """The 80 % interval of TPOT of the first point [s], as of `intervals` without the others; None: ideal times."""
        if self.analysis.calibration is None:
            return None
        from llmviewer.result import interval

        return interval.levels(interval.tpot_ratios(self.analysis) * self.analysis.tpot_s)["80"]


def towers(images: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Stages of the vision tower by the size of the images, of `Result.images`."""
    return {f"vision tower {one['width']}x{one['height']}": one["stage"] for one in images}


def _fact(values: Count | Sequence[str], point: int) -> int | float | str | None:
    if isinstance(values, (list, tuple)):
        return str(values[point])
    return number(value_at(values, point))  # type: ignore[arg-type]
