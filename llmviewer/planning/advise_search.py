"""Single changes of a run, and the greedy search for a combination of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from llmviewer.api.configuration import Configuration
from llmviewer.api.trials import changed, tried
from llmviewer.core.errors import UserError
from llmviewer.core.workload import Request
from llmviewer.planning.advise_goal import Goal
from llmviewer.planning.advise_trials import DEVICE_OPTIONS, Choice, choices, larger_batches, plans, smaller_batches
from llmviewer.result.result import Result
from llmviewer.result.verdict import Change

#: Whether a change may be made.
Allowed = Callable[[Change], bool]
#: Most changes of a combination.
MOST_STEPS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run with its result, from which changes start.

    most_devices: those of a change; None: as many as are tried.  steps: changes that were made to the run as asked.
    reached: runs with one change more, each with its own changes tried once, whichever scope asks for them.
    """

    goal: Goal
    configuration: Configuration
    request: Request
    result: Result
    most_devices: int | None = None
    steps: int = 0
    reached: dict[Change, Run] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return int(self.configuration.system.parallelism.devices)

    @cached_property
    def singles(self) -> list[Change]:
        """All single changes that are supported here."""
        return list(self._singles())

    def _singles(self) -> Iterator[Change]:
        for name, value in self._choices():
            found = tried(self.configuration, self.request, {name: value}) if self._allows(name, value) else None
            if found is not None and _is_defined(self.goal, found.result):
                yield found

    def _allows(self, name: str, value: Any) -> bool:
        """Whether a change takes no more devices than allowed."""
        if self.most_devices is None or name not in DEVICE_OPTIONS:
            return True
        try:
            made, _ = changed(self.configuration, self.request, {name: value})
        except UserError:  # the chip or the model does not support it
            return False
        return made.system.parallelism.devices <= self.most_devices

    def _choices(self) -> Iterator[Choice]:
        """Values to try; the batch is part of the question unless throughput is, or the run misses something."""
        yield from choices(self.configuration, self.result)
        yield from plans(self.configuration, self.result) if self.steps == 0 else ()
        if "tokens_per_s" in self.goal.metric.name:
            yield from larger_batches(self.request, self.result)
        if not self.goal.holds(self.result):
            yield from smaller_batches(self.request, self.result)

    def after(self, change: Change) -> Run:
        """The run with a change."""
        if change not in self.reached:
            configuration, request = changed(self.configuration, self.request, change.words)
            made = replace(self, configuration=configuration, request=request, result=change.result, reached={})
            self.reached[change] = replace(made, steps=self.steps + 1)
        return self.reached[change]


def _is_defined(goal: Goal, result: Result) -> bool:
    try:
        goal.metric.of(result)
    except UserError:
        return False
    return True


def combination(start: Run, allowed: Allowed) -> list[Change]:
    """The best change, then the best on top of it, until none is better; each with the result so far.

    An option may change again, such as a share of offloaded weights after their number format.  allowed: whether a
    change may be made.
    """
    run, steps = start, list[Change]()
    while len(steps) < MOST_STEPS:
        better = [one for one in run.singles if allowed(one) and run.goal.is_better(one.result, run.result)]
        if not better:
            break
        best = min(better, key=lambda one: run.goal.order(one.result))
        steps.append(best)
        run = run.after(best)
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Changes that a combination may make.  devices: most of them.  batch: least size of the batch."""

    devices: int
    batch: float

    def __call__(self, change: Change) -> bool:
        """Whether a change is within the scope."""
        return change.devices <= self.devices and float(change.words.get("batch_size", self.batch)) >= self.batch


def widest_needed(start: Run, scopes: Sequence[Scope]) -> tuple[Scope, list[Change]]:
    """The first scope with a combination that holds, and that combination; without one, the nearest of all."""
    found = [(scopes[0], combination(start, scopes[0]))]
    for scope in scopes[1:]:
        if start.goal.holds(_end(start, found[-1][1])):
            return found[-1]
        found.append((scope, combination(start, scope)))
    return min(reversed(found), key=lambda one: start.goal.order(_end(start, one[1])))


def _end(start: Run, steps: list[Change]) -> Result:
    return steps[-1].result if steps else start.result
