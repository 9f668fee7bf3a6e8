"""Decisions scored by measurements: which of all runs of a model and workload is picked within limits.

A problem is a model with a prompt and an answer length, two limits, and the runs that were measured: chips, numbers of
devices, layouts, number formats, engines and users.  Its best run has the most output tokens per second and device of
those that meet both limits.  A pick is made from predictions alone and judged by the measured figures of that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llmviewer.calibrate.engine_rows import may_draft
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.planning.chance import probability_within

if TYPE_CHECKING:
    import pandas as pd

#: Limits of a problem [ms]: first token, time per output token.
TTFT_LIMITS_MS, TPOT_LIMITS_MS = (500.0, 1000.0, 2000.0, 5000.0), (10.0, 20.0, 30.0, 50.0, 100.0)
#: Columns that name a run, and those that name a problem.
RUN = ("device", "n_gpus", "tp", "model", "weight_dtype", "engine", "batch", "input_len", "output_len", "note")
PROBLEM = ("model", "input_len", "output_len")
#: Least ratio of two yields whose order is judged.
APART = 1.1

Flags = npt.NDArray[np.bool_]


@frozen(eq=False)
class Runs:
    """Latencies of runs [ms], one entry each, with bounds of their 80 % interval, and tokens per second and device."""

    ttft_ms: Array
    tpot_ms: Array
    tokens_per_s: Array
    bounds: tuple[Array, Array, Array, Array] | None = None

    def meets(self, limits: tuple[float, float]) -> Flags:
        """Runs within both limits."""
        return np.asarray((self.ttft_ms <= limits[0]) & (self.tpot_ms <= limits[1]))

    def chances(self, limits: tuple[float, float]) -> Array:
        """The less probable of both limits for every run; certain without intervals."""
        if self.bounds is None:
            return self.meets(limits).astype(float)
        low, high, lower, higher = self.bounds
        pairs = ((limits[0], self.ttft_ms, low, high), (limits[1], self.tpot_ms, lower, higher))
        found = [
            [
                probability_within(limit, value, {"80": (a / value, b / value)})
                for value, a, b in zip(*rest, strict=True)
            ]
            for limit, *rest in pairs
        ]
        return np.asarray(np.min(found, axis=0))


@frozen(eq=False)
class Problem:
    """Measured and predicted runs of one model and workload, and limits that some but not all of them meet."""

    name: tuple[Any, ...]
    limits: tuple[float, float]
    measured: Runs
    predicted: Runs

    def judged(self, pick: int) -> tuple[bool, float]:
        """Whether a pick meets both limits, and its tokens per second over the best possible, 0 if it does not."""
        met = self.measured.meets(self.limits)
        best = float(self.measured.tokens_per_s[met].max())
        return bool(met[pick]), float(self.measured.tokens_per_s[pick]) / best if met[pick] else 0.0


def by_prediction(problem: Problem) -> int:
    """The run with most predicted tokens of those whose prediction is within the limits, else the nearest miss."""
    runs, limits = problem.predicted, problem.limits
    met = runs.meets(limits)
    excess = np.maximum(runs.ttft_ms / limits[0], runs.tpot_ms / limits[1])
    return int(np.argmax(np.where(met, runs.tokens_per_s, -np.inf)) if met.any() else np.argmin(excess))


def by_chance(least: float) -> Callable[[Problem], int]:
    """The run with most predicted tokens of those within the limits with this probability, else the most probable."""

    def pick(problem: Problem) -> int:
        chances = problem.predicted.chances(problem.limits)
        sure = chances >= least
        tokens = np.where(sure, problem.predicted.tokens_per_s, -np.inf)
        return int(np.argmax(tokens) if sure.any() else np.argmax(chances))

    return pick


def runs_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Runs with both latencies and their predictions, from rows that `calibrate.e2e.predict` made.

    Runs that may draft tokens without saying so are left out.
    """
    known = rows[rows["predicted"].notna() & ~rows.apply(may_draft, axis=1)]
    names = [name for name in RUN if name in known]
    key = known[names].astype(object).where(known[names].notna(), "").astype(str).apply(tuple, axis=1)
    both = [
        known[known["metric"] == metric].assign(run=key).drop_duplicates("run").set_index("run")
        for metric in ("ttft_ms", "tpot_ms")
    ]
    figures = ["value", "predicted", "ideal", "low80", "high80"]
    first, then = (
        frame[figures].add_prefix(f"{metric} ") for frame, metric in zip(both, ("ttft", "tpot"), strict=True)
    )
    return both[0][names].join(first).join(then, how="inner")


def figures(runs: pd.DataFrame, which: str) -> Runs:
    """The runs by their measured (`value`), `predicted` or `ideal` times."""
    ttft, tpot = (runs[f"{metric} {which}"].to_numpy(dtype=float) for metric in ("ttft", "tpot"))
    batch, answer, devices = (runs[name].to_numpy(dtype=float) for name in ("batch", "output_len", "n_gpus"))
    tokens = batch * answer / ((ttft + tpot * (answer - 1.0)) * 1e-3) / devices
    bounds = None
    if which == "predicted":
        low, high, lower, higher = (
            runs[f"{metric} {bound}"].to_numpy(dtype=float)
            for metric in ("ttft", "tpot")
            for bound in ("low80", "high80")
        )
        bounds = (low, high, lower, higher)
    return Runs(ttft_ms=ttft, tpot_ms=tpot, tokens_per_s=tokens, bounds=bounds)


def problems_of(runs: pd.DataFrame, predictor: str = "predicted") -> Iterator[Problem]:
    """The problems of a table of runs, with picks to be made by `predicted` or `ideal` times."""
    for name, part in runs.groupby(list(PROBLEM), sort=True):
        measured, predicted = figures(part, "value"), figures(part, predictor)
        for limits in ((a, b) for a in TTFT_LIMITS_MS for b in TPOT_LIMITS_MS):
            met = measured.meets(limits)
            if met.any() and not met.all():
                yield Problem(name=tuple(name), limits=limits, measured=measured, predicted=predicted)


def score(problems: Sequence[Problem], pick: Callable[[Problem], int]) -> tuple[float, float]:
    """Share of picks that meet both limits, and mean of their tokens over the best possible."""
    judged = [problem.judged(pick(problem)) for problem in problems]
    return float(np.mean([met for met, _ in judged])), float(np.mean([share for _, share in judged]))


def order_score(runs: pd.DataFrame) -> tuple[int, float]:
    """Pairs of runs of one model and workload whose yields are APART, and the share predicted in the right order."""
    right = []
    for _, part in runs.groupby(list(PROBLEM)):
        measured, predicted = (figures(part, which).tokens_per_s for which in ("value", "predicted"))
        for one, other in combinations(range(len(part)), 2):
            ratio = measured[one] / measured[other]
            if max(ratio, 1.0 / ratio) > APART:
                right.append((ratio > 1.0) == (predicted[one] > predicted[other]))
    return len(right), float(np.mean(right))
