"""Elasticity of a time: by how many percent it falls when a resource of the chip grows by one percent.

−∂ln t / ∂ln r by central differences, all resources of the chip at once as an array of chips; the engine's time on the
host adds to that of the kernels, so that its elasticity is its share.  Where every term of the time is work over a
rate, they add up to 1.  The rest of calibrated kernels is time in cycles of the clock, which stays: the tasks of
attention, the bytes that a unit keeps in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.answer import Answer
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import TO_HOST, Chip
from llmviewer.hardware.hypothetical import TIMES, figure_of, with_figure
from llmviewer.language.option import Kind, Option, taking
from llmviewer.language.quantity import LATENCIES
from llmviewer.result.result import Result
from llmviewer.techniques.options import RUN_OPTIONS
from llmviewer.timing.calibrated import Calibrated

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import RunOptions

SCHEMA = "llmviewer.elasticity/1"
METRICS = tuple(LATENCIES)
#: Relative change of a resource on either side.
CHANGE = 1e-4
HOST = "host"
OWN = {"metric": Option(kind=Kind.WORD, choices=METRICS, help="Time that is looked at: tpot_s, ttft_s or e2e_s.")}


@frozen(repr=False)
class Elasticities(Answer):
    """Elasticities of a metric by resource, largest first.  model, hardware: names.  value: the metric [s].

    result: the run whose time it is.
    """

    QUESTION: ClassVar[str] = "elasticity"
    metric: str
    model: str
    hardware: str
    value: float
    by_resource: dict[str, float]
    warnings: tuple[str, ...] = ()
    result: Result = field(repr=False)

    @property
    def rest(self) -> float:
        """One less the sum: what no single resource changes."""
        return 1.0 - sum(self.by_resource.values())

    def saved(self, resource: str, more: float = 0.1) -> float:
        """Share of the time that is saved by `more` of a resource, from its elasticity."""
        return float(1.0 - (1.0 + more) ** -self.by_resource[resource])

    def sentence(self) -> str:
        """The largest elasticity in words: 10 % more bandwidth buys 7.9 %."""
        name = next(iter(self.by_resource))
        return f"10 % {'faster' if name in (*TIMES, HOST) else 'more'} {name} buys {100.0 * self.saved(name):.1f} %"

    def rows(self) -> list[dict[str, Any]]:
        """One row per resource, and one of the rest."""
        shared = {"model": self.model, "hardware": self.hardware, "metric": self.metric, "value": self.value}
        shares = (*self.by_resource.items(), ("rest", self.rest))
        return [{**shared, "resource": name, "elasticity": share} for name, share in shares]

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.model,
            "hardware": self.hardware,
            "metric": self.metric,
            "value": self.value,
            "elasticities": dict(self.by_resource),
            "rest": self.rest,
        }


@taking(RUN_OPTIONS)
def elasticity(
    model: ModelName,
    hardware: ChipName,
    *,
    metric: str = "tpot_s",
    batch_size: int = 1,
    input_len: int = 1024,
    output_len: int = 128,
    **options: Unpack[RunOptions],
) -> Elasticities:
    """The elasticities of ttft_s, tpot_s or e2e_s for every resource of a chip, and of launches and the host.

    options: those of `analyze`.  Raises UserError.
    """
    return elasticities(configuration(model, hardware, **options), request(batch_size, input_len, output_len), metric)


def elasticities(chosen: Configuration, workload: Request, metric: str) -> Elasticities:
    """The elasticities of one point.  Raises UserError for an unknown metric or a system that adapts to the chip."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    if metric == "tpot_s" and np.max(workload.output_len) < 2:
        raise UserError("one output token has no time per output token; give output_len 2 or more, or another metric")
    if chosen.most_points < np.inf:
        raise UserError("a technique adapts to the request and the chip; its time has no elasticity by resource")
    chosen = chosen.settled()
    result = chosen.answer(workload)
    found = dict(_of_figures(chosen, workload, metric))
    found |= dict(_of_times(chosen, workload, metric))
    found[HOST] = _host_share(chosen, workload, metric)
    kept = {name: share for name, share in found.items() if abs(share) > 1e-6}
    ordered = dict(sorted(kept.items(), key=lambda item: -abs(item[1])))
    return Elasticities(
        metric=metric,
        model=chosen.model.name,
        hardware=chosen.chip.name,
        value=float(result.figures[metric][0]),
        by_resource=ordered,
        warnings=chosen.warnings(workload),
        result=result,
    )


def _times(chosen: Configuration, workload: Request, metric: str) -> Array:
    return np.atleast_1d(np.asarray(getattr(chosen.answer(workload).analysis, metric), dtype=np.float64))


def _of_figures(chosen: Configuration, workload: Request, metric: str) -> Iterator[tuple[str, float]]:
    """Elasticity of every figure of the chip, in one answer with two chips for each."""
    names = [name for name in _resources(chosen.chip) if figure_of(chosen.chip, name) is not None]
    chip: Chip = chosen.chip
    for at, name in enumerate(names):
        factors = np.ones(2 * len(names))
        factors[2 * at : 2 * at + 2] = 1.0 - CHANGE, 1.0 + CHANGE
        chip = with_figure(chip, name, np.asarray(figure_of(chosen.chip, name)) * factors)
    times = _times(chosen.on_chip(chip), workload, metric)
    for at, name in enumerate(names):
        yield name, _slope(times[2 * at], times[2 * at + 1])


def _resources(chip: Chip) -> Iterator[str]:
    """Names of the rates of a chip; bf16 stands for fp16 where both are one."""
    yield from ("bandwidth", "l2_bandwidth", "special")
    rates = chip.matrix_flops_per_s
    yield from (f"peak.{name}" for name in rates if name != "fp16" or rates.get("bf16") != rates["fp16"])
    yield from (f"vector.{name}" for name in chip.vector_flops_per_s)
    yield from (f"links.{name}" for name in chip.links if name in (chip.default_link, *TO_HOST))


def _slope(fewer: float, more: float) -> float:
    return float(-(np.log(more) - np.log(fewer)) / (np.log1p(CHANGE) - np.log1p(-CHANGE)))


def _of_times(chosen: Configuration, workload: Request, metric: str) -> Iterator[tuple[str, float]]:
    """Elasticity of the rate of launches and of messages: of the inverse of their times."""
    efficiency = chosen.system.efficiency
    if not isinstance(efficiency, Calibrated):
        return
    now = {name: getattr(efficiency, name) for name in TIMES}
    for name in TIMES:
        ends = []
        for factor in (1.0 + CHANGE, 1.0 - CHANGE):  # a higher rate is a shorter time
            factors = {**now, name: now[name] * factor}
            text = ",".join(f"{time}=x{value!r}" for time, value in factors.items())
            ends.append(_times(chosen.with_options({"set": text}), workload, metric)[0])  # of draft models too
        yield name, _slope(ends[0], ends[1])


def _host_share(chosen: Configuration, workload: Request, metric: str) -> float:
    """Share of the engine's own time in the metric."""
    rows = chosen.answer(workload).attribution(metric)
    engine = rows[rows["kind"] == "engine"]["seconds"].sum()
    return float(engine / rows["seconds"].sum())
