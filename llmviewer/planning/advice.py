"""Advice on a run: changes that were tried, ranked, and their combination, with the commands that answer them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.api.trials import flag
from llmviewer.planning.accuracy import Risk, risk
from llmviewer.planning.advise_goal import Goal
from llmviewer.planning.advise_trials import acceptance_of
from llmviewer.result.result import Result
from llmviewer.result.verdict import Change

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.advice/1"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Advice:
    """Changes of a run that were tried.

    result: the run as asked.  changes: those that help and hold, best first.  more_devices: those that need more than
    the combination may have.  broken: those that help, but do not fit or break a limit.  tried: number of all.
    steps: of the combination, each with the result so far.  line: words of the run as asked, by option.
    """

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
        """Whether the combination fits in memory and keeps all limits."""
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
            "holds": self.goal.holds(result),
        }

    def _then(self, result: Result) -> dict[str, Any]:
        """The metric of a result, with its interval and the gain over the run as asked, if that fits."""
        metric = self.goal.metric
        gain = metric.gain(metric.of(self.result), metric.of(result))
        known = self.result.fits and np.isfinite(gain)
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
