"""Lines of a contract: a subject, and a condition `METRIC OPERATOR VALUE [UNIT] [at ...]`; and their values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from llmviewer import api
from llmviewer.api import build
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import UNITS_OF_TIME
from llmviewer.language.option import Kind
from llmviewer.language.quantity import unit_of
from llmviewer.result.describe import model_object
from llmviewer.result.result import STAGES, Result
from llmviewer.result.stages import value_at
from llmviewer.simulation import options
from llmviewer.simulation.call import finished, simulate
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.result import METRICS
from llmviewer.techniques.options import MODEL_OPTIONS, OPTIONS, WORKLOAD
from llmviewer.timing import engine, engine_memory

#: Spelling of an option without hyphens in front -> its name.
SPELLED = {
    spelling.lstrip("-").replace("-", "_"): name
    for name, one in OPTIONS.items()
    if name not in WORKLOAD
    for spelling in (name, *one.spellings(name))
}
SWITCHES = {"": True, "true": True, "false": False}
#: Values of options contain commas, without a blank after them.
SEPARATOR = re.compile(r",\s+")
HINT = "a word is an engine, or an option and its value, such as tp 2; a blank follows each comma"


@frozen
class Subject:
    """A model, and where it runs.  hardware: empty for facts of the model alone.  options: of a run."""

    text: str
    model: str
    hardware: str
    options: Mapping[str, Any]


def subject(text: str) -> Subject:
    """The subject that a text describes.  Raises UserError."""
    first, *words = SEPARATOR.split(text.strip())
    model, *where = (part.strip() for part in re.split(r"\son(?:\s|$)", f" {first}", maxsplit=1))
    hardware = where[0] if where else ""
    if not model or (where and not hardware):
        raise UserError(f"configuration {quoted(text)} names no {'chip' if model else 'model'}; write MODEL on CHIP")
    options: dict[str, Any] = {}
    for word in words:
        name, value = _option(word.strip())
        if name in options:
            raise UserError(f"{name} is given twice; remove one of them")
        options[name] = value
    return Subject(text=text, model=model, hardware=hardware, options=options)


def _option(word: str) -> tuple[str, Any]:
    """The name and the value of `vllm`, `tp 2` or `enforce_eager`.  Raises UserError."""
    spelled, _, text = (part.strip() for part in word.partition(" "))
    if not text and engine_memory.split_version(spelled)[0] in engine.accepted():
        return "engine", spelled
    name = SPELLED.get(spelled.lstrip("-").replace("-", "_"))
    if name is None:
        raise unknown("word", word if "," in word else spelled, {*SPELLED, *engine.accepted()}, hint=HINT)
    return name, _value(name, text)


def _value(name: str, text: str) -> Any:
    """The value of an option as Python calls take it.  Raises UserError for what no option of its kind has."""
    kind = OPTIONS[name].kind
    if kind is Kind.SWITCH:
        if text not in SWITCHES:
            raise unknown(name, text, ("true", "false"))
        return SWITCHES[text]
    if not text:
        raise UserError(f"{name} has no value; write it after a blank: {name} VALUE")
    if kind is Kind.WORDS:
        return tuple(text.split())
    return OPTIONS[name].parsed(text)


_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | {
    "KB": 1e3,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
}
_FLOP = {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()}
_NUMBERS = {"%": 0.01, "million": 1e6, "billion": 1e9}


@frozen
class Unit:
    """A unit as a contract writes it: how many SI units it is, and of which kind of quantity.  kind "": of any."""

    name: str
    factor: float
    kind: str


#: Units of all kinds by name.
UNITS: dict[str, Unit] = {
    name: Unit(name=name, factor=factor, kind=kind)
    for kind, units in (
        ("time", UNITS_OF_TIME | {"µs": 1e-6, "μs": 1e-6}),
        ("bytes", _BYTES),
        ("bandwidth", {f"{name}/s": factor for name, factor in _BYTES.items()}),
        ("work", _FLOP),
        ("compute rate", {f"{name}/s": factor for name, factor in _FLOP.items()}),
        ("token rate", {"tokens/s": 1.0}),
        ("request rate", {"requests/s": 1.0}),
        ("number", _NUMBERS),
    )
    for name, factor in units.items()
}
_AMOUNT = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.]\S*)?", re.ASCII)


def amount(text: str, metric: str) -> tuple[float, Unit]:
    """The value in SI units and the unit of `12 ms`; without one it is in SI units.  Raises UserError.

    metric: for the units that an error advises; whether they are of its kind is checked when it is known to exist.
    """
    found = _AMOUNT.fullmatch(text.strip())
    value = float(found[1]) if found else math.nan
    if found is None or not math.isfinite(value):
        raise UserError(f"the limit is {quoted(text.strip())}; allowed: a number and its unit, such as 12 ms")
    name = found[2] or ""
    if name and name not in UNITS:
        raise unknown("unit", name, UNITS, hint=f"{printable(metric)} may be in {_of_kind(unit_of(metric).kind)}")
    unit = UNITS.get(name, Unit(name="", factor=1.0, kind=""))
    return value * unit.factor, unit


def checked(unit: Unit, metric: str) -> Unit:
    """The unit, if a metric may have it; a missing one is that of SI.  Raises UserError with the units allowed."""
    kind = unit_of(metric).kind
    if unit.kind == kind:
        return unit
    if not unit.kind:
        return Unit(name=unit_of(metric).symbol, factor=1.0, kind=kind)
    raise UserError(f"{printable(metric)} is not in {unit.name}; allowed: {_of_kind(kind)}, or a number alone")


def _of_kind(kind: str) -> str:
    return ", ".join(name for name, one in UNITS.items() if one.kind == kind and name.isascii())


OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
#: Name of the memory that is left, and the conditions on it -> operator; the limit is 0.
ROOM = "room_bytes"
FITS = {"fits": ">=", "does not fit": "<"}
#: Word after `at` -> option of `analyze` or of `simulate`; options that only a load has.
SIZES = {"batch": "batch_size", "input": "input_len", "output": "output_len"} | {name: name for name in WORKLOAD}
OF_LOADS = ("requests", "seed")
#: Word after the number of a load -> option of `simulate`.
LOADS = {"requests/s": "request_rate", "users": "concurrency"}
FORMS = f"METRIC {' or '.join(OPERATORS)} VALUE UNIT, METRIC within P % of VALUE UNIT, {', '.join(FITS)}"
_COMPARED = re.compile(r"(.*?)\s*([<>=≤≥!~]+|\bwithin\b)\s*(.*)", re.DOTALL)
_WITHIN = re.compile(r"(\S+?)\s*%\s+of\s+(.+)", re.DOTALL)


@frozen
class Condition:
    """A comparison of a metric with a limit [SI].

    statistic: of a simulated latency.  compared: an operator; with `within` there is a tolerance, a fraction of the
    limit.  sizes: of the request, or of the load where there is one.  load: when requests arrive; empty for one batch.
    """

    text: str
    metric: str
    compared: str
    limit: float
    unit: Unit
    statistic: str = ""
    tolerance: float | None = None
    sizes: Mapping[str, Any]
    load: Mapping[str, Any]

    def holds(self, value: float) -> bool:
        """Whether a value keeps the condition."""
        if self.tolerance is not None:
            return abs(value - self.limit) <= self.tolerance * abs(self.limit)
        return OPERATORS[self.compared](value, self.limit)


def condition(text: str) -> Condition:
    """The condition that a text describes; whether its metric exists shows only in an answer.  Raises UserError."""
    compared, *given = re.split(r"\sat(?:\s|$)", text.strip(), maxsplit=1)
    sizes, load = _sizes(given[0]) if given else ({}, {})
    fields: dict[str, Any]
    if compared.strip() in FITS:
        fields = {"metric": ROOM, "compared": FITS[compared.strip()], "limit": 0.0, "unit": UNITS["GiB"]}
    else:
        fields = _comparison(compared)
    if fields["metric"] == ROOM and load:
        raise UserError(f"{compared.strip()} is of one batch; a load has latencies and rates")
    if fields.get("statistic") and not load:
        raise UserError(f"{fields['metric']} {fields['statistic']} is of a load; add at 8 requests/s, or at 64 users")
    return Condition(text=text, sizes=sizes, load=load, **fields)


def _comparison(text: str) -> dict[str, Any]:
    """Metric, statistic, operator and limit of a comparison.  Raises UserError."""
    found = _COMPARED.fullmatch(text)
    if found is None or found[2] not in (*OPERATORS, "within"):
        raise UserError(f"condition {quoted(text.strip())} compares nothing; allowed: {FORMS}")
    names, compared, right = found[1].split(), found[2], found[3]
    if len(names) not in (1, 2):
        raise UserError(f"metric is {quoted(found[1].strip())}; allowed: a name such as tpot_s, or ttft_s p99")
    if len(names) > 1 and names[1] not in STATISTICS:
        raise unknown("statistic", names[1], STATISTICS)
    fields: dict[str, Any] = {"metric": names[0], "statistic": "".join(names[1:]), "compared": compared}
    if compared == "within":
        parts = _WITHIN.fullmatch(right)
        percent = arguments.parse_number(parts[1]) if parts else ""
        if parts is None or isinstance(percent, str) or not 0 < percent < float("inf"):
            raise UserError(
                f"within is {quoted(right.strip())}; allowed: a percentage and a value: within 5 % of 12 ms"
            )
        fields["tolerance"], right = percent / 100.0, parts[2]
    fields["limit"], fields["unit"] = amount(right, names[0])
    return fields


def _sizes(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes and load after `at`: `batch 8, input 2k` or `8 requests/s, output 200`.  Raises UserError."""
    sizes: dict[str, Any] = {}
    load: dict[str, Any] = {}
    for part in SEPARATOR.split(text.strip()):
        first, _, second = (word.strip() for word in part.strip().partition(" "))
        target, name, value = (load, LOADS[second], first) if second in LOADS else (sizes, first, second)
        if target is sizes:
            if first not in (*SIZES, *OF_LOADS):
                raise unknown("size", part, (*SIZES, *OF_LOADS), hint=f"a load is a number and {' or '.join(LOADS)}")
            name = SIZES.get(first, first)
        if name in target:
            raise UserError(f"{name} is given twice; remove one of them")
        target[name] = arguments.parse_size(value)
    return _checked(sizes, load), load


def _checked(sizes: dict[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes, if a batch or a load has them.  Lengths of a load may be distributions.  Raises UserError."""
    if load and "batch_size" in sizes:
        raise UserError("batch is of one batch and a load has none; remove one of them")
    alone = [name for name in OF_LOADS if name in sizes and not load]
    if alone:
        raise UserError(f"{alone[0]} is of a load; add 8 requests/s or 64 users")
    if not load:
        return {name: arguments.whole_number(name, value) for name, value in sizes.items()}
    words = {name: str(value) if name in WORKLOAD else value for name, value in sizes.items()}
    options.traffic_of(options.checked({**words, **load}))  # wrong words are told before anything is simulated
    return words


#: Groups of an answer whose metrics are known without the group's name.
PLAIN = ("metrics", "memory", "model")
#: Groups that are predictions of a run, which what does not fit in memory never makes.
OF_A_RUN = ("metrics", "serving", *STAGES)
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


@frozen
class Found:
    """The value of a metric [SI].

    value None: it has none, for a reason.  reason: why the value cannot be kept.  notes: warnings of its answer.
    """

    value: float | int | None
    reason: str = ""
    notes: tuple[str, ...] = ()


@frozen
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
        needing = [name for name in subject.options if name not in MODEL_OPTIONS]
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
    return finished(simulate(subject.model, subject.hardware, **words)).to_dict()


def of_server(document: Mapping[str, Any], condition: Condition) -> Found:
    """The value of a metric of a load; a server that is saturated or answers nothing has no latencies."""
    notes = tuple(document["notes"])
    if document["saturated"]:
        rate = document["requests_per_s"]
        return Found(value=None, reason=f"the server is saturated: it answers {rate:.3g} requests/s", notes=notes)
    if not document["completed"]:
        return Found(value=None, reason="no request is answered", notes=notes)
    value = document[condition.metric]
    value = value[condition.statistic or STATISTICS[0]] if condition.metric in METRICS else value
    return Found(value=value, reason="" if value is not None else "no request has this time", notes=notes)
