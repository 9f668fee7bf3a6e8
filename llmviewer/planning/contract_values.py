"""Values of the metrics that contracts name: of a model, of a batch on a chip, of a server under a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llmviewer import api
from llmviewer.api import build
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.planning.contract_condition import ROOM, Condition
from llmviewer.planning.contract_subject import Subject
from llmviewer.result.describe import model_object
from llmviewer.result.result import STAGES, Result
from llmviewer.result.stages import value_at
from llmviewer.simulation.call import simulate
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.result import METRICS
from llmviewer.techniques.options import WORKLOAD

#: Groups of an answer whose metrics are known without the group's name.
PLAIN = ("metrics", "memory", "model")
#: Groups that are predictions of a run, which what does not fit in memory never makes.
OF_A_RUN = ("metrics", "serving", *STAGES)
#: Options that facts of a model alone depend on.
OF_MODELS = ("dtype", "ignore_fields", "trace_model", "latent_attention")
#: Numbers of a simulation beside its latencies.
OF_SERVERS = (
    "output_tokens_per_s",
    "requests_per_s",
    "completed",
    "running_mean",
    "waiting_mean",
    "kv_cache_occupancy_mean",
    "preemptions",
    "prefix_hit_rate",
    "utilization",
    "devices",
)
NOT_FITTING = "does not fit in memory"

Group = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The value of a metric [SI].

    value None: it has none, for a reason.  reason: why the value cannot be kept.  notes: warnings of its answer.
    """

    value: float | int | None
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Groups of numbers of one question, each computed when first asked for.  room: memory left on a device [byte]."""

    groups: Mapping[str, Group]
    room: Callable[[], float] | None = None
    notes: tuple[str, ...] = ()

    def found(self, condition: Condition) -> Found:
        """The value of a condition's metric.  Raises UserError if it is unknown, ambiguous or has no value."""
        if condition.metric == ROOM and self.room is not None:
            return Found(value=self.room(), notes=self.notes)
        group, name = self._place(condition.metric.removeprefix("stages."))
        value = dict(_numbers(self.groups[group]()))[name]
        if value is None:
            raise UserError(f"{printable(condition.metric)} has no value for this configuration and these sizes")
        fits = self.room is None or group not in OF_A_RUN or self.room() >= 0.0
        return Found(value=value, reason="" if fits else NOT_FITTING, notes=self.notes)

    def _place(self, metric: str) -> tuple[str, str]:
        """The group and the name in it of a metric.  Raises UserError."""
        group, _, name = metric.partition(".")
        if group in self.groups:
            names = dict(_numbers(self.groups[group]()))
            if name not in names:
                raise unknown(f"metric of {group}", name, names)
            return group, name
        if "metrics" in self.groups and metric in dict(_numbers(self.groups["metrics"]())):
            return "metrics", metric  # names of no other group, and the largest sizes in `memory` take a search
        plain = {own: dict(_numbers(self.groups[own]())) for own in PLAIN if own in self.groups}
        homes = [own for own, names in plain.items() if metric in names]
        if len(homes) > 1:
            raise UserError(f"metric {metric} is ambiguous; write {' or '.join(f'{own}.{metric}' for own in homes)}")
        if not homes:
            more = "" if self.room is not None else "; other metrics need MODEL on CHIP"
            hint = f"metrics are numbers of `llmviewer analyze --format json`{more}"
            raise unknown("metric", metric, {name for names in plain.values() for name in names}, hint=hint)
        return homes[0], metric


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | int | None]]:
    """Numbers of nested fields by dotted names, the bounds of an interval as `low` and `high`."""
    for key, value in fields.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and len(value) == 2 and all(map(arguments.is_number, value)):
            yield from zip((f"{name}.low", f"{name}.high"), value, strict=True)
        elif value is None or arguments.is_number(value):
            yield name, value


def check_names(subject: Subject, condition: Condition) -> None:
    """Raise UserError for a model, a chip, an option or a metric of a load that does not exist; computes nothing."""
    if not subject.hardware:
        needing = [name for name in subject.options if name not in OF_MODELS]
        asked = [*condition.load, *condition.sizes, *(("fits",) if condition.metric == ROOM else ()), *needing]
        if asked:
            raise UserError(f"{asked[0]} needs a chip; write {printable(subject.model)} on CHIP")
        _model(subject)
        return
    api.configuration(subject.model, subject.hardware, **subject.options)
    if condition.load and condition.metric not in (*METRICS, *OF_SERVERS):
        raise unknown("metric of a load", condition.metric, (*METRICS, *OF_SERVERS))
    if condition.statistic and condition.metric not in METRICS:
        raise UserError(f"{condition.metric} has no {condition.statistic}; latencies have: {', '.join(METRICS)}")


def answer(subject: Subject, sizes: Mapping[str, Any]) -> Answer:
    """The answer of `analyze`, or of the model alone if there is no chip.  Raises UserError."""
    if not subject.hardware:
        model = _model(subject)
        return Answer(groups={"model": lambda: model_object(model)}, notes=model.notes)
    asked = {name: sizes.get(name, one.default) for name, one in WORKLOAD.items()}
    result: Result = api.configuration(subject.model, subject.hardware, **subject.options).answer(api.request(**asked))
    groups: dict[str, Group] = {
        "metrics": result.metrics,
        "memory": result.memory_at,
        "model": lambda: model_object(result.analysis.model, result.analysis.whole_graph),
        "serving": result.serving,
        **{stage: partial(result.stage, stage) for stage in STAGES},
    }
    return Answer(
        groups={name: cache(group) for name, group in groups.items()},
        room=lambda: float(value_at(result.analysis.memory.room_bytes, 0)),
        notes=result.warnings,
    )


def _model(subject: Subject) -> Any:
    return build.model_of(subject.model, build.options_of(subject.options))


def server(subject: Subject, condition: Condition) -> Mapping[str, Any]:
    """The simulation object of a load.  Raises UserError, and KeyboardInterrupt for a run that was not finished."""
    words = {**subject.options, **condition.sizes, **condition.load}
    made = simulate(subject.model, subject.hardware, **words)
    if not made.outcomes[-1].completed:
        raise KeyboardInterrupt
    return made.to_dict()


def of_server(document: Mapping[str, Any], condition: Condition) -> Found:
    """The value of a metric of a load; a server that is saturated or answers nothing has no latencies."""
    notes = tuple(document["notes"])
    if document["saturated"]:
        rate = document["max_request_rate"]
        return Found(value=None, reason=f"the server is saturated above {rate:.3g} requests/s", notes=notes)
    if not document["completed"]:
        return Found(value=None, reason="no request is answered", notes=notes)
    value = document[condition.metric]
    value = value[condition.statistic or STATISTICS[0]] if condition.metric in METRICS else value
    return Found(value=value, reason="" if value is not None else "no request has this time", notes=notes)
