"""Measured and predicted times of recorded passes: of operators, gaps and kernels without an operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import nan

from llmviewer.calibrate.diagnosis.slots import OTHER_MODELS, PREPARE, SAMPLING
from llmviewer.core.frozen import frozen

#: Work that engines do beside the model, which no operator predicts.
BESIDE = (PREPARE, SAMPLING, OTHER_MODELS)
#: What states the work of a pass: marks of the engine, or shapes of matrix products.
MARKS, SHAPES = "marks", "shapes"


@dataclass(slots=True, kw_only=True, eq=False)
class OperatorTimes:
    """Times of one operator over all layers.  wait_s: idle time before its kernels.

    kernels: name -> number of runs; kernel_s: name -> seconds.  least_s: on the roofline, of products with weights.

    kind: of the operator.  dtype: in which its matrix units compute, "" without them.  borrowed: chip on which the
    kernels of the prediction were measured, "" if it is this one.  runs: kernels that are predicted, 0 if unknown.
    """

    name: str
    kind: str
    dtype: str = ""
    borrowed: str = ""
    runs: float = 0.0
    predicted_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    least_s: float = 0.0
    measured_s: float = 0.0
    wait_s: float = 0.0
    kernels: Counter[str] = field(default_factory=Counter)
    kernel_s: dict[str, float] = field(default_factory=dict)

    @property
    def longest(self) -> dict[str, int]:
        """Number of runs by kernel, those with the most time first."""
        return {name: self.kernels[name] for name in sorted(self.kernels, key=lambda one: -self.kernel_s[one])}


@frozen
class Seen:
    """Work of the recorded passes, means per pass.

    by: what states it, MARKS or SHAPES, "" if nothing but the user does.  phase: of most passes.  requests: of a pass.
    length: new tokens of a prompt or keys of a generating request, NaN if it is not stated.  tokens: new in a pass.
    """

    by: str = ""
    phase: str = ""
    requests: float = nan
    length: float = nan
    tokens: float = nan


@dataclass(slots=True, kw_only=True, eq=False)
class Comparison:
    """Times of recorded passes, means per pass [s].

    operators: name -> times, in the order of the graph; the places BESIDE have no prediction.  unplanned: kind ->
    seconds of kernels of engines' own kinds without an operator; unmatched: kernel name -> seconds of the others.
    within_s, planned_within_s: idle device between the kernels of a pass, measured and predicted.  between_s,
    planned_between_s: from the last kernel of a pass to the next pass, means over the passes after which another one
    follows, whose number is `followed`; both are 0 without one.  said_s: predicted time of the work that the user
    states, None if it states none.  seen: the work that the recording states.  overlap_s: seconds of kernels during
    which another one runs.  linked: share of kernels with a launch of their own.  runs: (kernel, kind, operator) ->
    number and seconds.  inputs: of a recorded matrix product -> seconds, where shapes are recorded; own_inputs: those
    of the model's products.  notes: what the recorded passes lack, in sentences for the user.
    """

    passes: int
    phases: Counter[str]
    measured_s: float = 0.0
    within_s: float = 0.0
    planned_within_s: float = 0.0
    between_s: float = 0.0
    planned_between_s: float = 0.0
    followed: int = 0
    said_s: float | None = None
    seen: Seen = field(default_factory=Seen)
    inputs: dict[float, float] = field(default_factory=dict)
    own_inputs: set[float] = field(default_factory=set)
    overlap_s: float = 0.0
    linked: float = 0.0
    operators: dict[str, OperatorTimes] = field(default_factory=dict)
    unplanned: dict[str, float] = field(default_factory=dict)
    unmatched: dict[str, float] = field(default_factory=dict)
    runs: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def predicted_s(self) -> float:
        """Predicted time of the kernels and of the engine; of the work that the user states, if that is another."""
        return self.work_s if self.said_s is None else self.said_s

    @property
    def work_s(self) -> float:
        """Predicted time of the recorded work."""
        kernels = sum(one.predicted_s for one in self.operators.values())
        return kernels + self.planned_within_s + self.planned_between_s

    @property
    def gap_s(self) -> float:
        """Time of the idle device."""
        return self.within_s + self.between_s

    @property
    def kernel_s(self) -> float:
        """Seconds of all kernels."""
        return sum(seconds for _, seconds in self.runs.values())

    @property
    def unmatched_s(self) -> float:
        """Seconds of kernels that could not be matched."""
        return sum(self.unmatched.values())
