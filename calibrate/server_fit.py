"""Fit of a preset to few rows of one server: least squares in logarithms of its constants, with the preset as a prior.

A constant is fitted if its prior spread moves the rows by more than they scatter; the others stay the preset's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from llmviewer.calibrate.fit_engines import Trial
from llmviewer.calibrate.free_constants import MAX_VALUES, MIN_VALUES
from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.timing.engine import Engine
from llmviewer.timing.engine_work import FACTORS
from llmviewer.timing.profile import SIGNS, WIDTH_OVER_80

#: Prior spread of log(a server's constant / the preset's), one standard deviation: of times of the host, and of
#: kernels where a preset has no residuals, else half the width of its 80 % interval of these metrics.
HOST_SPREAD, KERNEL_SPREAD = 0.7, 0.2
KERNEL_METRICS = {"prompt": ("ttft_ms",)}
OF_DECODE = ("tpot_ms", "decode_tok_s", "latency_ms", "throughput_tok_s")
#: Scatter of the rows of one configuration around constants of its own, in logarithms: of first tokens among users
#: who come and go, and of all others; and how many rows this counts for in their interval.
FIRST_SCATTER, OTHER_SCATTER, SCATTER_ROWS = 0.20, 0.06, 4.0
#: Half an 80 % interval over the scatter of the rows held out: 1.28 of a normal distribution, and 1.3 times that, as
#: other loads lie farther than held-out runs: docs/guide/calibration.md#your-server.
HALF_80 = 1.2816 * 1.3
#: Residual over its scatter beyond which a row counts less (Huber's loss).
OUTLIER = 2.0
#: Squares of (prior spread in a row / its scatter), summed over rows, from which on a constant is fitted.
LEAST_SIGNAL = 0.25
SHARES = ("share", "integer_share")
#: Least factor of all kernels of large passes, which run at nine tenths of the roofline in profiles.
LEAST = MIN_VALUES | {"prompt": 0.8}
#: Most runs that are held out one by one; more are held out in as many folds.
MOST_FOLDS = 10
DIFFERENCE, TOLERANCE, ITERATIONS = 1e-2, 1e-3, 12


@frozen(eq=False)
class ServerFit:
    """A preset fitted to rows.

    logs: constant -> log(fitted / the preset's), of those that were fitted.  spreads: their standard deviation after
    the fit, in logarithms.  rows: how many rows each moves by more than their scatter.
    """

    engine: Engine
    logs: Mapping[str, float]
    spreads: Mapping[str, float]
    rows: Mapping[str, int]


def values_of(preset: Engine) -> dict[str, float]:
    """Constants [us], factors and shares of a preset that a server may have otherwise."""
    shares = {name: value for name in SHARES if preset.unit_bytes and (value := getattr(preset, name))}
    return {**preset.constants, **dict.fromkeys(FACTORS, 1.0), **preset.factors, **shares}


def with_logs(preset: Engine, logs: Mapping[str, float]) -> Engine:
    """The preset with these constants changed.  logs: constant -> log(new / old)."""
    known = values_of(preset)
    new = {name: float(np.clip(known[name] * np.exp(log), LEAST[name], MAX_VALUES[name])) for name, log in logs.items()}
    constants = {name: new.get(name, value) for name, value in preset.constants.items()}
    factors = {**preset.factors, **{name: value for name, value in new.items() if name in FACTORS}}
    share, integer_share = (new.get(name, getattr(preset, name)) for name in SHARES)
    return replace(preset, constants=constants, factors=factors, share=share, integer_share=integer_share)


def spread_of(preset: Engine, name: str) -> float:
    """Prior spread of the logarithm of a constant, one standard deviation."""
    if name not in FACTORS and name not in SHARES:
        return HOST_SPREAD
    for metric in KERNEL_METRICS.get(name, OF_DECODE):
        for _, low, high, _ in preset.residuals.get(metric, {}).values():
            return float(np.log(high / low)) / 2.0
    return KERNEL_SPREAD


def log_ratios(preset: Engine, trials: Sequence[Trial]) -> Array:
    """Logarithms of measured / predicted times of all rows."""
    logs: Array = np.log(np.maximum(np.concatenate([trial.ratio(preset) for trial in trials]), 1e-9))
    return logs


def scatter_of(trials: Sequence[Trial]) -> Array:
    """Scatter of every row, in logarithms."""
    cases = (case for trial in trials for case in trial.group.cases)
    first = [case.metric == "ttft_ms" and case.batching != "static" for case in cases]
    return np.where(first, FIRST_SCATTER, OTHER_SCATTER)


@frozen(eq=False)
class _Problem:
    """Residuals of rows, and of kernels seen in a trace, over changes of some constants.

    kernels: factor -> time of its kernels in a trace over that of the preset.
    """

    preset: Engine
    trials: Sequence[Trial]
    chosen: Array
    kernels: Mapping[str, float]
    names: tuple[str, ...]

    @property
    def scatter(self) -> Array:
        seen = [OTHER_SCATTER] * len(self.kernels)
        return np.concatenate([scatter_of(self.trials)[self.chosen], seen])

    @property
    def prior(self) -> Array:
        return np.array([spread_of(self.preset, name) for name in self.names])

    def residuals(self, x: Array) -> Array:
        logs = dict(zip(self.names, x, strict=True))
        seen = [np.log(factor) - logs.get(name, 0.0) for name, factor in self.kernels.items()]
        return np.concatenate([log_ratios(with_logs(self.preset, logs), self.trials)[self.chosen], seen])

    def slopes(self, x: Array, at: Array) -> Array:
        """Derivatives of the residuals, shape (rows, constants).  at: the residuals."""
        moved = x + DIFFERENCE * np.eye(len(x))
        return np.array([(self.residuals(one) - at) / DIFFERENCE for one in moved]).T.reshape(len(at), len(x))

    def cost(self, x: Array, residuals: Array) -> float:
        z = np.abs(residuals / self.scatter)
        loss = np.where(z < OUTLIER, z * z, (2.0 * z - OUTLIER) * OUTLIER)
        return float(loss.sum() + np.square(x / self.prior).sum())

    def step(self, x: Array, residuals: Array, slopes: Array) -> tuple[Array, Array]:
        """A Gauss-Newton step of reweighted squares, halved until it lowers the cost; zero where none does."""
        weights = np.minimum(1.0, OUTLIER / np.maximum(np.abs(residuals / self.scatter), 1e-9)) / self.scatter**2
        matrix = (slopes.T * weights) @ slopes + np.diag(self.prior**-2.0)
        downhill = -((slopes.T * weights) @ residuals + x / self.prior**2)
        change: Array = np.linalg.solve(matrix, downhill).astype(np.float64)
        before = self.cost(x, residuals)
        while np.abs(change).max() > TOLERANCE:
            found = self.residuals(x + change)
            if self.cost(x + change, found) <= before:
                return change, found
            change = change / 2.0
        return np.zeros(len(x)), residuals


def fit(preset: Engine, trials: Sequence[Trial], chosen: Array, kernels: Mapping[str, float]) -> ServerFit:
    """The preset fitted to the chosen rows, and to kernels of a trace.

    chosen: a mask of all rows.  kernels: factor -> time of its kernels in a trace over that of the preset.
    """
    problem = _Problem(preset=preset, trials=trials, chosen=chosen, kernels=kernels, names=tuple(values_of(preset)))
    x = np.zeros(len(problem.names))
    residuals = problem.residuals(x)
    slopes = problem.slopes(x, residuals)
    signal = np.square(slopes * problem.prior / problem.scatter[:, None])
    fitted = signal.sum(axis=0) > LEAST_SIGNAL
    names = tuple(name for name, one in zip(problem.names, fitted, strict=True) if one)
    rows = dict(zip(names, map(int, (signal > LEAST_SIGNAL).sum(axis=0)[fitted]), strict=True))
    problem, x, slopes = replace(problem, names=names), x[fitted], slopes[:, fitted]
    for _ in range(ITERATIONS if names else 0):
        change, residuals = problem.step(x, residuals, slopes)
        if not change.any():
            break
        x = x + change
        slopes = problem.slopes(x, residuals)
    certain = (slopes.T / problem.scatter**2) @ slopes + np.diag(problem.prior**-2.0)
    spreads = np.sqrt(np.diag(np.linalg.inv(certain))) if names else x
    logs, spread = (dict(zip(names, map(float, values), strict=True)) for values in (x, spreads))
    return ServerFit(engine=with_logs(preset, logs), logs=logs, spreads=spread, rows=rows)


def held_out(
    preset: Engine, trials: Sequence[Trial], chosen: Array, kernels: Mapping[str, float], runs: Sequence[object]
) -> Array:
    """Logarithms of measured / predicted of the chosen rows, each fitted without its run; NaN for a single run.

    runs: the run of every row of all.
    """
    found = np.full(len(chosen), np.nan)
    places = list(dict.fromkeys(run for run, one in zip(runs, chosen, strict=True) if one))
    folds = np.array([places.index(run) % MOST_FOLDS if run in places else -1 for run in runs])
    for fold in np.unique(folds[chosen]) if len(places) > 1 else ():
        without = fit(preset, trials, chosen & (folds != fold), kernels)
        own = chosen & (folds == fold)
        found[own] = log_ratios(without.engine, trials)[own]
    return found


def interval(logs: Array, scatter: Array) -> tuple[float, ...]:
    """QUANTILES of measured / predicted of further rows, from those held out.

    scatter: of every row, as expected before any was seen; their mean square counts for SCATTER_ROWS rows.
    """
    seen = logs[np.isfinite(logs)]
    squares = SCATTER_ROWS * float(np.square(scatter).mean()) + float(np.square(seen).sum())
    half = HALF_80 * float(np.sqrt(squares / (SCATTER_ROWS + len(seen))))
    return tuple(round(float(one), 4) for one in np.exp(SIGNS * WIDTH_OVER_80 * half)[:, 0])
