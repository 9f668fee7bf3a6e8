"""The least rates, or memory, of a hypothetical chip with which a metric meets its target or a workload fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import figure_of, with_figure
from llmviewer.serving.batching import STATIC

CAPACITY = "capacity"
#: Largest ratio of the capacity to one that does not suffice.
CLOSE = 1.0 + 1e-8
#: Times of the chip's own capacity up to which is searched, and the steps in which the interval is found.
MOST, STEP = 1e3, 2.0


def least_capacity(configuration: Configuration, workload: Request) -> float:
    """Least capacity [byte] that holds the workload, with the sequences that run at once on the chip as it is.

    Where the chip does not hold the workload, they are those of plenty of memory.  Raises UserError if no capacity
    suffices, or if a technique chooses something else for each capacity.
    """
    if configuration.most_points < np.inf or configuration.system.spatial:
        raise UserError("a technique adapts to the request and the chip; the capacity cannot be varied with it")
    most = MOST * float(figure_of(configuration.chip, CAPACITY))  # type: ignore[arg-type]

    def running(capacity: float) -> float:
        return _running(configuration.on_chip(with_figure(configuration.chip, CAPACITY, capacity)), workload)

    wanted = max(_running(configuration, workload), 0.0) or running(most)
    if wanted < 0.0:
        raise UserError("no capacity of the device holds the workload; see `analyze` for what else limits it")
    return _least(lambda capacity: running(capacity) >= wanted, most)


def _running(made: Configuration, workload: Request) -> float:
    """Sequences that start one by one and run at once, 0 for a static batch; -1 if the workload does not fit."""
    if made.system.batching is STATIC:
        return 0.0 if made.memory_columns(workload)["fits"][0] else -1.0
    answer = made.answer(workload)
    running = answer.analysis.running
    return float(np.max(running.request.batch_size)) if running is not None and answer.fits else -1.0


def _least(holds: Callable[[float], bool], most: float) -> float:
    """The least value that holds, to CLOSE.  most: one that holds."""
    high, low = most, most / STEP
    while holds(low):
        high, low = low, low / STEP
    while high > low * CLOSE:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


#: Search between a thousandth and a thousand times of the chip's own figure.
WIDEST = 1e3
#: Points of a round, and rounds: the interval shrinks by the number of points less one each time.
POINTS, ROUNDS = 33, 6
#: Points of a frontier along each figure but the last, by the number of figures.
ALONG = {2: 9, 3: 5}
#: Distance of the ends of a frontier from the least figure, which needs infinitely much of the other.
ABOVE = 1.02


@frozen
class Solution:
    """Figures in SI units by name, and the metric that they reach [s]."""

    figures: Mapping[str, float]
    reached: float


@frozen(eq=False)
class Search:
    """A configuration with a workload whose metric is to meet a target."""

    configuration: Configuration
    workload: Request
    metric: str
    target: float

    def check(self, names: Sequence[str]) -> None:
        """Raise UserError for a figure that the chip lacks."""
        for name in names:
            if figure_of(self.configuration.chip, name) is None:
                raise UserError(f"{self.configuration.chip.name} has no {name}; give it one with --set {name}=VALUE")

    def having(self, figures: Mapping[str, float]) -> Search:
        """The search on a chip with some figures of other values."""
        chip: Chip = self.configuration.chip
        for name, value in figures.items():
            chip = with_figure(chip, name, value)
        return replace(self, configuration=self.configuration.on_chip(chip))

    def times(self, figures: Mapping[str, Array]) -> Array:
        """The metric of every combination of figures [s].  figures: arrays of one length."""
        chip: Chip = self.configuration.chip
        for name, values in figures.items():
            chip = with_figure(chip, name, values)
        answer = self.configuration.on_chip(chip)
        points = len(next(iter(figures.values()))) if figures else 1
        if answer.most_points < points:
            raise UserError("a technique adapts to the request and the chip; figures cannot be varied with it")
        found = np.asarray(getattr(answer.answer(self.workload).analysis, self.metric), dtype=np.float64)
        return np.broadcast_to(found, (points,))

    def own(self, name: str) -> float:
        """The real chip's figure."""
        return float(figure_of(self.configuration.chip, name))  # type: ignore[arg-type]

    def lowest(self, name: str) -> float:
        """The least value that is searched, with a margin for rounding."""
        return self.own(name) / WIDEST * (1.0 + 1e-9)

    def idle(self, names: Sequence[str]) -> tuple[str, ...]:
        """Rates on which the metric does not depend, however much there is of the others."""
        plenty = {name: np.full(2, WIDEST * self.own(name)) for name in names}
        ends = {name: np.array([self.own(name) / WIDEST, WIDEST * self.own(name)]) for name in names}
        return tuple(name for name in names if np.ptp(self.times({**plenty, name: ends[name]})) == 0.0)

    def floor(self, names: Sequence[str]) -> float:
        """The metric with a thousand times of every varied rate [s]."""
        return float(self.times({name: np.array([WIDEST * self.own(name)]) for name in names})[0])

    def least(self, name: str, others: Mapping[str, Array]) -> Array:
        """Least value of a figure for every combination of the others; inf where none meets the target."""
        count = len(next(iter(others.values()))) if others else 1
        low, high = np.full(count, self.own(name) / WIDEST), np.full(count, self.own(name) * WIDEST)
        repeated = {other: np.repeat(values, POINTS) for other, values in others.items()}
        for _ in range(ROUNDS):
            tried = np.geomspace(low, high, POINTS, axis=1)
            met = self.times({**repeated, name: tried.ravel()}).reshape(count, POINTS) <= self.target
            first = np.where(met.any(axis=1), met.argmax(axis=1), POINTS - 1)
            rows = np.arange(count)
            low, high = tried[rows, np.maximum(first - 1, 0)], tried[rows, first]
        reached = self.times({**others, name: high}) <= self.target
        return np.where(reached, high, np.inf)

    def solutions(self, names: Sequence[str]) -> tuple[Solution, ...]:
        """The least figure, or the frontier of two or three, by the first figure."""
        if not names:
            return (Solution(figures={}, reached=self.floor(())),)
        *others, last = names
        grid = self._grid(others, last)
        found = self.least(last, grid)
        kept = np.isfinite(found)
        kept[kept] = _undominated(np.stack([*(values[kept] for values in grid.values()), found[kept]], axis=1))
        figures = {**{name: values[kept] for name, values in grid.items()}, last: found[kept]}
        reached = self.times(figures)
        return tuple(
            Solution(figures={name: float(figures[name][at]) for name in names}, reached=float(reached[at]))
            for at in range(int(kept.sum()))
        )

    def _grid(self, others: Sequence[str], last: str) -> dict[str, Array]:
        """Combinations of all figures but the last, each from its least value to where more of it does not help."""
        if not others:
            return {}
        columns = []
        plenty = {name: np.array([WIDEST * self.own(name)]) for name in (*others, last)}
        for name in others:
            rest = {other: values for other, values in plenty.items() if other != name}
            least = float(self.least(name, rest)[0])
            most = float(self.least(name, self._tight(name, rest))[0])
            top = most if np.isfinite(most) and most > least * ABOVE else least * WIDEST**0.5
            columns.append(np.geomspace(least * ABOVE, max(top, least * ABOVE**2), ALONG[len(others) + 1]))
        mesh = np.meshgrid(*columns, indexing="ij")
        return {name: values.ravel() for name, values in zip(others, mesh, strict=True)}

    def _tight(self, name: str, rest: Mapping[str, Array]) -> dict[str, Array]:
        """The other figures just above their least values."""
        plenty = {name: np.array([WIDEST * self.own(name)]), **rest}
        return {
            other: ABOVE * self.least(other, {key: values for key, values in plenty.items() if key != other})
            for other in rest
        }


def _undominated(points: Array) -> Array:
    """True for rows that no other row undercuts in a column without exceeding it in another.  points: (rows, figures).

    Differences by rounding are none.
    """
    below = np.all(points[None] <= points[:, None] * (1.0 + 1e-6), axis=2)
    less = np.any(points[None] < points[:, None] * (1.0 - 1e-6), axis=2)
    return np.asarray(~np.any(below & less, axis=1))
