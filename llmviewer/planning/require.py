"""Inverse design: the least figures of a hypothetical chip with which a metric meets its target.

The least capacity is searched first, and then least rates of a chip with it (`least_figures.py`).  What varies may be a
size of the run instead, of which the largest is found (`largest_size.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.api.trials import run_line
from llmviewer.core import arguments
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.core.workload import Request
from llmviewer.hardware import specs
from llmviewer.hardware.hypothetical import TIMES, figure_name, figure_of, settings, told, unit_of
from llmviewer.language.option import Kind, Option, taking
from llmviewer.planning.largest_rate import REQUEST_RATE, LargestRate, largest_rate
from llmviewer.planning.largest_size import CONCURRENCY, CONTEXT, SCHEMA, SIZES_OF_A_RUN, LargestSize, largest_size
from llmviewer.planning.least_figures import CAPACITY, Search, Solution, least_capacity
from llmviewer.result.result import Result
from llmviewer.simulation.call import of_server
from llmviewer.simulation.limits import METRICS, Limit
from llmviewer.techniques.options import ENGINE_OPTIONS, OPTIONS, RUN_OPTIONS

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import RequireOptions

#: Figures that may vary, as they are told.
VARIED = ("bandwidth", "peak.DTYPE", CAPACITY, "l2_bandwidth", "vector.DTYPE", "special", "links.NAME")
#: Size of a run, or rate of its requests, that may vary alone instead, as it is told -> its name.
ALONE = {name.replace("_", "-"): name for name in (*SIZES_OF_A_RUN, REQUEST_RATE)}
#: Figures that may vary at once.
MOST = 3
#: Targets, one of which has to be met.
TARGETS = {
    "tpot": Option(kind=Kind.TIME, help="Time per output token to meet: 10ms."),
    "ttft": Option(kind=Kind.TIME, help="Time to first token to meet: 500ms."),
    "e2e": Option(kind=Kind.TIME, help="Time of the whole request to meet: 5s."),
    "tokens_per_s": Option(kind=Kind.TEXT, help="Tokens per second of one user to meet: 100."),
}
OWN = {
    "vary": Option(
        kind=Kind.TEXT,
        help="Up to three of bandwidth, peak.bf16, capacity ...; or batch-size, context, concurrency or request-rate.",
        json={"type": ["string", "array"], "items": {"type": "string"}},
    ),
    **TARGETS,
}


@frozen
class Neighbour:
    """A real chip that meets the target.  excess: largest ratio of its figures to those required."""

    hardware: str
    excess: float
    reached: float


@frozen(slots=False, eq=False, repr=False)  # no slots: the answer with the real chip is kept
class Required(Answer):
    """The answer of an inverse design.

    floor: the metric with a thousand times of every varied rate [s].  bound: the least value of a single varied rate
    on the roofline of the data sheet, None for several or if the roofline does not reach the target.  line: words of
    the run as asked, by option, without the figures that vary.  warnings: of the model, the system and the search.
    idle: varied figures on which the metric does not depend; they stay as they are.
    """

    QUESTION: ClassVar[str] = "require"
    configuration: Configuration
    workload: Request
    metric: str
    target: float
    vary: tuple[str, ...]
    solutions: tuple[Solution, ...]
    floor: float
    line: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]
    bound: float | None = None
    nearest: Neighbour | None = None
    idle: tuple[str, ...] = ()

    @cached_property
    def now(self) -> Result:
        """The answer with the real chip."""
        return self.configuration.answer(self.workload)

    @property
    def best(self) -> Solution | None:
        """The solution in the middle of the frontier, or the only one."""
        return self.solutions[len(self.solutions) // 2] if self.solutions else None

    def setting(self, found: Solution) -> str:
        """Options of `analyze` that re-run a solution; rounded upwards, so that the target is met."""
        return " ".join(f"--set {name}={told(_upward(value), unit_of(name))}" for name, value in found.figures.items())

    @property
    def searched(self) -> tuple[str, ...]:
        """The varied figures on which the metric depends; never the capacity."""
        return tuple(name for name in self.vary if name != CAPACITY and name not in self.idle)

    def chips(self) -> dict[str, dict[str, float]]:
        """Varied figures of every real chip that has all of them, by name; without those that change nothing."""
        wanted = [name for name in self.vary if name not in self.idle]
        found = {name: {one: figure_of(specs.load(name), one) for one in wanted} for name in specs.names()}
        return {
            name: {one: float(value) for one, value in figures.items() if value is not None}
            for name, figures in found.items()
            if None not in figures.values()
        }

    @property
    def holds(self) -> bool:
        """Whether a chip could meet the target."""
        return bool(self.solutions)

    def rows(self) -> list[dict[str, Any]]:
        """One row per solution: its figures, and the metric that it reaches."""
        return [{**one.figures, self.metric: one.reached} for one in self.solutions]

    def command(self, found: Solution) -> str:
        """The command that re-runs a solution."""
        words = (word for part in self.line.values() for word in part)
        return f"{shlex.join(('llmviewer', 'analyze', *words))} {self.setting(found)}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        best = self.best
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.configuration.model.name,
            "hardware": self.configuration.chip.name,
            "metric": self.metric,
            "target": self.target,
            "vary": list(self.vary),
            "solutions": [dict(one.figures) for one in self.solutions],
            "reached": None if best is None else best.reached,
            "command": None if best is None else self.command(best),
            "floor": self.floor,
            "bound": self.bound,
            "now": float(getattr(self.now, self.metric)),
            "own": {name: _number(figure_of(self.configuration.chip, name)) for name in self.vary},
            "nearest_hardware": None if self.nearest is None else self.nearest.hardware,
        }


def _number(figure: Any) -> float | None:
    return None if figure is None else float(figure)


def _upward(value: float) -> float:
    """A value with six digits, not less than it is."""
    step = 10.0 ** (np.floor(np.log10(value)) - 5)
    return float(np.ceil(value / step - 1e-9) * step)


@taking(TARGETS, RUN_OPTIONS)
def require(
    model: ModelName,
    hardware: ChipName = "h100-sxm",
    *,
    vary: str | Sequence[str],
    batch_size: int = 1,
    input_len: int = 1024,
    output_len: int = 128,
    **given: Unpack[RequireOptions],
) -> Required | LargestSize | LargestRate:
    """The least figures of a chip with which a metric meets its target, or the largest size of a run that does.

    hardware: the chip whose other figures stay.  vary: up to three of bandwidth, peak.DTYPE, capacity, l2_bandwidth,
    links.NAME ... as in `set`; or batch-size, context, concurrency or request-rate alone, the last of a simulated
    server, whose limits may be percentiles ("p99:1s").  options: one of ttft, tpot, e2e (such as
    "10ms") or tokens_per_s of one user, for a size any number of them, and those of `analyze`.  Raises UserError.
    """
    output_len = arguments.whole_number("output_len", output_len)
    names, sizes = _varied(vary), {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    if names[0] == REQUEST_RATE:
        return _rate(model, hardware, given, sizes)
    targets = _targets({name: given.get(name) for name in (*METRICS, "tokens_per_s")}, output_len)
    options = {name: value for name, value in given.items() if name not in TARGETS}
    if names[0] in SIZES_OF_A_RUN:
        return _largest(names[0], model, hardware, options, sizes, targets)
    metric, target = _one_of(targets)
    chosen = configuration(model, hardware, **options)
    question = Search(configuration=chosen.settled(), workload=request(*sizes.values()), metric=metric, target=target)
    question.check(names)
    fixed = {CAPACITY: least_capacity(question.configuration, question.workload)} if CAPACITY in names else {}
    question = question.having(fixed) if fixed else question
    rates = tuple(name for name in names if name != CAPACITY)
    idle = question.idle(rates)
    rates = tuple(name for name in rates if name not in idle)
    floor = _known(metric, question.floor(rates))
    solutions = question.solutions(rates) if floor <= target else ()
    fixed |= {name: question.own(name) for name in idle}
    solutions = tuple(replace(one, figures={**one.figures, **fixed}) for one in solutions)
    found = Required(
        configuration=chosen,
        workload=question.workload,
        metric=metric,
        target=target,
        vary=names,
        solutions=solutions,
        floor=floor,
        line=run_line(model, hardware, {**options, **sizes, "set": _kept(chosen, names)}),
        warnings=(*chosen.warnings(question.workload), *_notes(question, names, solutions), *map(_idle_note, idle)),
        bound=_bound(question, options, rates) if len(rates) == 1 else None,
        idle=idle,
    )
    return replace(found, nearest=_nearest(found, options)) if solutions else found


def _rate(model: Any, hardware: Any, given: Mapping[str, Any], sizes: Mapping[str, int]) -> LargestRate:
    """The highest rate of requests of a server within its targets."""
    if sizes["batch_size"] != 1:
        raise UserError(f"batch_size is {sizes['batch_size']}; a server makes its batches itself: remove it")
    limits = {name: given[name] for name in METRICS if given.get(name) is not None}
    if given.get("tokens_per_s") is not None:
        if "tpot" in limits:
            raise UserError("tokens_per_s and tpot limit the same; give one of them")
        limits["tpot"] = f"{_target('tokens_per_s', given['tokens_per_s'], sizes['output_len'])[1]:.9g}s"
    options = {name: value for name, value in given.items() if name not in TARGETS}
    return largest_rate(model, hardware, options, {name: sizes[name] for name in ("input_len", "output_len")}, limits)


def _known(metric: str, seconds: float) -> float:
    """A time.  Raises UserError where the metric has no value."""
    if np.isnan(seconds):
        raise UserError(f"{metric} has no value here: the pass of the first token decides all others; limit another")
    return seconds


def _largest(
    name: str,
    model: Any,
    hardware: Any,
    options: Mapping[str, Any],
    sizes: Mapping[str, int],
    targets: Mapping[str, tuple[str, float]],
) -> LargestSize:
    """The largest size of a run within its targets; concurrent requests are those of a server, as in `simulate`."""
    options = of_server(hardware, options) if name == CONCURRENCY else dict(options)
    limits = [Limit(metric=metric, statistic="mean", seconds=seconds) for metric, seconds in targets.values()]
    varied = "input_len" if name == CONTEXT else "batch_size"
    words = {**options, **{one: value for one, value in sizes.items() if one != varied}}
    return largest_size(
        name,
        configuration(model, hardware, **options),
        request(*sizes.values()),
        limits,
        lambda: run_line(model, hardware, words),
    )


def _kept(chosen: Configuration, names: Sequence[str]) -> str | None:
    """The settings of the run without the figures that vary; None if none is left."""
    text = chosen.techniques["set"]
    if text == OPTIONS["set"].default:
        return None
    return ",".join(f"{one.name}={one.text}" for one in settings(text) if one.name not in names) or None


def _idle_note(name: str) -> str:
    return f"{name} changes nothing here: the chip's own stays"


def _notes(question: Search, names: Sequence[str], solutions: Sequence[Solution]) -> list[str]:
    """Warnings about a search that ended at its limit, and about a workload that the chip cannot hold."""
    found = [
        f"{name}: a thousandth of the chip's own meets the target; less was not searched"
        for name in names
        if name != CAPACITY and any(one.figures[name] <= question.lowest(name) for one in solutions)
    ]
    if CAPACITY not in names and not question.configuration.answer(question.workload).fits:
        found.append("the workload does not fit in the memory of the chip; vary capacity too")
    return found


def _bound(question: Search, options: Mapping[str, Any], rates: Sequence[str]) -> float | None:
    """The least value of a rate on the roofline of the data sheet."""
    left = ("set", "efficiency", "engine", *ENGINE_OPTIONS)  # the chip has the figures that are set
    own = {name: value for name, value in options.items() if name not in left}
    chip = question.configuration.chip
    ideal = replace(
        question, configuration=configuration(question.configuration.model, chip, efficiency="ideal", **own)
    )
    found = float(ideal.least(rates[0], {})[0])
    return found if ideal.lowest(rates[0]) < found < np.inf else None


def _targets(given: Mapping[str, Any], output_len: int) -> dict[str, tuple[str, float]]:
    """Metric and target [s] of every option that is given."""
    return {name: _target(name, value, output_len) for name, value in given.items() if value is not None}


def _one_of(targets: Mapping[str, tuple[str, float]]) -> tuple[str, float]:
    """The only target."""
    if len(targets) != 1:
        allowed = ", ".join(f"--{name.replace('_', '-')}" for name in (*METRICS, "tokens_per_s"))
        raise UserError(
            f"require needs one target; give one of {allowed}" if not targets else f"give only one of {allowed}"
        )
    (found,) = targets.values()
    return found


def _target(name: str, value: Any, output_len: int) -> tuple[str, float]:
    """Metric and target [s] of an option."""
    if name != "tokens_per_s":
        metric, target = METRICS[name], duration(name, value)
    else:
        try:
            metric, target = "tpot_s", 1.0 / float(value)
        except (TypeError, ValueError, ZeroDivisionError):
            raise UserError(
                f"tokens_per_s is {quoted(value)}; allowed: tokens per second of one user, such as 100"
            ) from None
    if not 0.0 < target < np.inf:
        raise UserError(f"{name} is {quoted(value)}; allowed: more than 0")
    if metric == "tpot_s" and output_len < 2:
        raise UserError(f"output_len is {output_len}; the time per output token needs at least 2")
    return metric, target


def _varied(vary: str | Sequence[str]) -> tuple[str, ...]:
    """Names of the varied figures, each once, or of the one size or rate."""
    words = [word.strip() for word in (vary.split(",") if isinstance(vary, str) else vary)]
    alone = tuple(ALONE[name] for word in words if (name := word.replace("_", "-")) in ALONE)
    if alone and len(words) > 1:
        raise UserError(f"vary is {quoted(','.join(words))}; a size or a rate varies alone: {', '.join(ALONE)}")
    if alone:
        return alone
    names = tuple(dict.fromkeys(map(_figure_name, words)))
    if not names:
        raise UserError("vary names no figure; give one to three, such as bandwidth")
    for name in names:
        if name in TIMES or name in ("units", "power", "on_chip", "l2"):
            raise unknown("figure to vary", name, (*VARIED, *ALONE))
    if len(names) > MOST:
        raise UserError(f"vary names {len(names)} figures; allowed: at most {MOST}")
    return names


def _figure_name(word: str) -> str:
    """The name of a figure.  Raises UserError with the nearest name, sizes included."""
    try:
        return figure_name(word)
    except UserError as error:
        if word.partition(".")[0] in ("peak", "vector", "links"):
            raise
        raise unknown("figure to vary", word, (*VARIED, *ALONE)) from error


def _nearest(found: Required, options: Mapping[str, Any]) -> Neighbour | None:
    """The real chip that meets the target with the least excess of its figures over a solution."""
    best: Neighbour | None = None
    options = {name: value for name, value in options.items() if name != "set"}  # of the hypothetical chip
    for name, own in found.chips().items():
        excess = min((_excess(own, one.figures) for one in found.solutions), default=np.inf)
        if excess == np.inf or (best is not None and excess >= best.excess):
            continue
        try:
            answer = configuration(found.configuration.model, specs.load(name), **options).answer(found.workload)
        except UserError:  # the chip cannot run the model so
            continue
        reached = float(getattr(answer, found.metric))
        if reached <= found.target and answer.fits:
            best = Neighbour(hardware=name, excess=excess, reached=reached)
    return best


def _excess(own: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """Largest ratio of a chip's figures to those required; inf if one is less."""
    ratios = [value / wanted[name] for name, value in own.items()]
    return max(ratios) if ratios and min(ratios) >= 1.0 else np.inf
