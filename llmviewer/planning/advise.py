"""`lv.advise`: changes of a run that were tried, ranked by gain, their greedy combination, commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.api import calls
from llmviewer.api.configuration import configuration
from llmviewer.api.trials import flag, run_line
from llmviewer.core import arguments
from llmviewer.core.answer import Answer
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Option, taking
from llmviewer.planning.accuracy import Risk, risk
from llmviewer.planning.advise_search import Goal, Run, Scope, acceptance_of, limits, widest_needed
from llmviewer.planning.run_metrics import RUN_METRICS, run_metric
from llmviewer.result.result import Change, Result
from llmviewer.result.stages import value_at
from llmviewer.techniques.options import OPTIONS, WORKLOAD

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import SizedRunOptions

SCHEMA = "llmviewer.advice/1"


@frozen(slots=False, eq=False, repr=False)
class Advice(Answer):
    """Changes of a run that were tried.

    result: the run as asked.  changes: those that help and hold, best first.  more_devices: those that need more than
    the combination may have.  broken: those that help, but do not fit or break a limit.  tried: number of all.
    steps: of the combination, each with the result so far.  line: words of the run as asked, by option.
    """

    QUESTION: ClassVar[str] = "advise"
    goal: Goal
    result: Result
    changes: tuple[Change, ...]
    more_devices: tuple[Change, ...]
    broken: tuple[Change, ...]
    tried: int
    steps: tuple[Change, ...]
    line: Mapping[str, tuple[str, ...]]

    def __repr__(self) -> str:
        return f"<Advice: {len(self.changes)} changes help {self.goal.metric.name}, {len(self.steps)} combined>"

    @property
    def best(self) -> Result:
        """The result of the combination; that of the run as asked if nothing helps."""
        return self.steps[-1].result if self.steps else self.result

    @property
    def holds(self) -> bool:
        """Whether the combination fits in memory, starts, and keeps all limits."""
        return self.goal.holds(self.best)

    @property
    def words(self) -> dict[str, Any]:
        """Options and sizes of the combination that differ from the run as asked."""
        return {name: value for step in self.steps for name, value in step.words.items()}

    def command(self, words: Mapping[str, Any]) -> str:
        """The command that answers the run with other options."""
        parts = {**self.line, **{name: (flag(name), str(value)) for name, value in words.items()}}
        return shlex.join(["llmviewer", "analyze", *(word for part in parts.values() for word in part)])

    def rows(self) -> list[dict[str, Any]]:
        """One row per change that helps and holds."""
        found: list[dict[str, Any]] = self.to_dict()["advice"]
        return found

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema."""
        metric = self.goal.metric
        return {
            "schema": SCHEMA,
            "metric": metric.name,
            "less_is_better": metric.less_is_better,
            "limits": [{"metric": one.metric, "limit_s": one.seconds} for one in self.goal.limits],
            "now": metric.of(self.result),
            "interval80": metric.interval(self.result),
            **self._facts(self.result),
            "command": self.command({}),
            "advice": [self._row(change) for change in self.changes],
            "combination": self._combination(),
            "more_devices": [self._row(change) for change in self.more_devices],
            "broken": [self._row(change) for change in self.broken],
            "tried": self.tried,
            "warnings": list(dict.fromkeys((*self.result.warnings, *self.best.warnings))),
        }

    def _facts(self, result: Result) -> dict[str, Any]:
        """Latencies, memory and devices of a result."""
        known, memory = result.metrics(), result.memory
        return {
            "ttft_s": known["ttft_s"],
            "tpot_s": known["tpot_s"],
            "devices": int(result.analysis.system.parallelism.devices),
            "total_bytes": memory["total_bytes"],
            "budget_bytes": memory["budget_bytes"],
            "fits": result.fits,
            "refusal": result.refusal,
            "holds": self.goal.holds(result),
        }

    def _then(self, result: Result) -> dict[str, Any]:
        """The metric of a result, with its interval and the gain over the run as asked, if that runs."""
        metric = self.goal.metric
        gain = metric.gain(metric.of(self.result), metric.of(result))
        known = self.result.runs and np.isfinite(gain)
        return {"then": metric.of(result), "interval80": metric.interval(result), "gain": gain if known else None}

    def _row(self, change: Change) -> dict[str, Any]:
        ((name, value),) = change.words.items()
        known = _risk(name, str(value))
        return {
            "option": name,
            "value": str(value),
            "text": change.option,
            **self._then(change.result),
            "risk": known.text,
            "source": known.source or None,
            **self._facts(change.result),
            "command": self.command(change.words),
        }

    def _combination(self) -> dict[str, Any]:
        steps = [
            {"option": name, "value": str(value), "text": step.option, "then": self.goal.metric.of(step.result)}
            for step in self.steps
            for name, value in step.words.items()
        ]
        words = {name: str(value) for name, value in self.words.items()}
        return {
            "options": words,
            "text": " ".join(f"{flag(name)} {value}" for name, value in words.items()),
            **self._then(self.best),
            **self._facts(self.best),
            "steps": steps,
            "command": self.command(words),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per change that helps, best first."""
        import pandas as pd

        return pd.DataFrame([self._row(change) for change in self.changes])


def _risk(name: str, value: str) -> Risk:
    """The risk of a value; of speculation with the measurement of the acceptance that it assumes."""
    known, preset = risk(name, value), acceptance_of(value) if name == "speculative" else None
    if preset is None:
        return known
    return Risk(text=f"{known.text}; acceptance on {preset.dataset}: {preset.source}", source=known.source)


#: Devices of a combination where no run on as many as asked fits and keeps the limits.
MOST_DEVICES = 8
#: Options beside those of `analyze`.
OWN = {
    "metric": Option(
        kind=Kind.WORD, choices=tuple(RUN_METRICS), help="To improve: tpot_s, ttft_s, e2e_s, output_tokens_per_s ..."
    ),
    "ttft": Option(kind=Kind.TIME, help="Limit of the time to first token: 500ms."),
    "tpot": Option(kind=Kind.TIME, help="Limit of the time per output token: 20ms."),
    "max_gpus": Option(kind=Kind.WHOLE, help="Most devices; default: as many as asked, more if nothing else holds."),
}


@taking(OPTIONS)
def advise(
    model: ModelName,
    hardware: ChipName,
    *,
    metric: str = "tpot_s",
    ttft: str | float | None = None,
    tpot: str | float | None = None,
    max_gpus: int | None = None,
    **options: Unpack[SizedRunOptions],
) -> Advice:
    """Changes of a run that make it better, each tried, and their greedy combination.

    model, hardware, options: as of `analyze`, sizes included.  metric: what to improve: tpot_s, ttft_s, e2e_s (less is
    better), output_tokens_per_s, output_tokens_per_s_per_device ... (more is better).  ttft, tpot: limits that have to
    hold ("500ms").  max_gpus: most devices; by default as many as asked, more only if nothing else holds.

    Raises UserError.
    """
    goal = Goal(metric=run_metric(metric), limits=limits({"ttft": ttft, "tpot": tpot}))
    sizes = {name: one.checked(name, options.get(name, one.default)) for name, one in WORKLOAD.items()}
    words = {name: value for name, value in options.items() if name not in WORKLOAD}
    request = calls.request(*sizes.values())
    made = configuration(model, hardware, **words)
    most = None if max_gpus is None else arguments.whole_number("max_gpus", max_gpus)
    most = None if most is None else max(most, int(made.system.parallelism.devices))
    start = Run(goal=goal, configuration=made, request=request, result=made.answer(request), most_devices=most)
    goal.metric.of(start.result)
    line = run_line(model, hardware, {**words, **sizes})
    return _advice(start, line)


def _advice(start: Run, line: Mapping[str, tuple[str, ...]]) -> Advice:
    goal, singles = start.goal, start.singles
    scope, steps = widest_needed(start, _scopes(start))
    better = [one for one in singles if goal.is_better(one.result, start.result)]
    better.sort(key=lambda one: goal.order(one.result))
    holding = [one for one in better if goal.holds(one.result)]
    return Advice(
        goal=goal,
        result=start.result,
        changes=tuple(one for one in holding if scope(one)),
        more_devices=tuple(one for one in holding if one.devices > scope.devices),
        broken=tuple(one for one in better if one not in holding),
        tried=len(singles),
        steps=tuple(steps),
        line=line,
    )


def _scopes(start: Run) -> list[Scope]:
    """The scopes of a combination: as asked; with more devices unless limited; with smaller batches."""
    batch = float(value_at(start.request.batch_size, 0))
    devices = start.most_devices or start.devices
    most = start.most_devices or max(MOST_DEVICES, devices)
    sizes = [devices, *(size for size in (2 * devices, 4 * devices) if size < most), most]
    scopes = [Scope(devices=size, batch=least) for least in (batch, 1.0) for size in sizes]
    return list(dict.fromkeys(scopes))
