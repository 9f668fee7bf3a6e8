"""Fit the constants of kernel families to measured rows, by the formulas that predict, and say how wrong they are.

Every row is predicted once by constants that did not see its shape (cross-validation over shapes); errors and the
quantiles of intervals come from those predictions alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from llmviewer.calibrate.conformal import covered, errors, quantiles
from llmviewer.calibrate.tables import SHAPES, Rows
from llmviewer.core.counts import Array
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing import roofline
from llmviewer.timing.efficiency import Rates
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.kernels.family import Constants, Family
from llmviewer.timing.profile import Fit
from llmviewer.timing.regimes import REGIMES, regime_of

#: Parts of the shapes, each of which is predicted from the others.
FOLDS = 5
#: Rows below which a fit would only repeat them.
LEAST_ROWS = 8
#: Log error at which a row begins to count less than its square (soft L1).
OUTLIER = 0.1
#: Pull of a constant towards its start [log error], a start or REACH of its bounds away: what rows say nothing about
#: stays there.
PULL, REACH = 0.03, 0.1
#: Part of the cost that a setting must save to be taken instead of the first.
WORTH = 0.3

Efficiency = Callable[[Operator, Chip], Rates]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Rows that one set of constants describes, and the fold of each."""

    family: str
    variant: str
    engine: str
    rows: tuple[Rows, ...]
    folds: tuple[Array, ...]


def folds_of(frame: Any, table: str) -> Array:
    """The fold of every row, by its shape alone: the same in every run, whoever measured it."""
    shapes = frame[list(SHAPES[table])].astype(str).agg("/".join, axis=1)
    marks = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % FOLDS for text in shapes]
    return np.array(marks, dtype=np.float64)


def key_of(rows: Rows) -> tuple[str, str, str]:
    """Family, variant and engine of the fit that rows belong to."""
    operator = rows.operators[-1]
    family = "attention_decode" if rows.table == "attention_decode" else families_of(operator)[0]
    return family, FAMILIES[family].variant(operator), rows.engine


def samples(rows: Sequence[Rows], folds: Sequence[Array]) -> list[Sample]:
    """Rows grouped by what a fit is for: the family and variant of their last operator, and the engine."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for at, item in enumerate(rows):
        grouped.setdefault(key_of(item), []).append(at)
    return [
        Sample(
            family=family, variant=variant, engine=engine,
            rows=tuple(rows[at] for at in members), folds=tuple(folds[at] for at in members),
        )
        for (family, variant, engine), members in grouped.items()
    ]  # fmt: skip


def trial(family: str, constants: Constants, others: Efficiency) -> Efficiency:
    """The efficiency with these constants for one family, `others` for the rest (a conversion before a product)."""

    def efficiency(operator: Operator, chip: Chip) -> Rates:
        if family in families_of(operator):
            return FAMILIES[family].rates(operator, chip, constants)
        return others(operator, chip)

    return efficiency


def seconds(rows: Rows, efficiency: Efficiency) -> tuple[Array, Array]:
    """Predicted seconds of every row, all its operators after each other; and the regime of the last."""
    points = np.ones(len(rows.measured_s))
    time = 0.0 * points
    for operator in rows.operators:
        timing = roofline.time_operator(operator, rows.chip, efficiency, operator.traffic_bytes)
        time = time + timing.time_s
    return time, regime_of(timing) * points


def fit(sample: Sample, others: Efficiency) -> Fit:
    """Constants, fitted range, and errors on rows that were not fitted on."""
    constants = _constants(sample, others, None)
    folds, measured = np.concatenate(sample.folds), np.concatenate([r.measured_s for r in sample.rows])
    predicted, regime = _predict(sample, constants, others)
    for fold in range(FOLDS):
        held = folds == fold
        if held.any() and not held.all():
            unseen, regimes = _predict(sample, _constants(sample, others, fold), others)
            predicted[held], regime[held] = unseen[held], regimes[held]
    ratio = measured / predicted
    return Fit(
        family=sample.family,
        variant=sample.variant,
        engine=sample.engine,
        constants=constants,
        range=_range(sample),
        residuals=_by_regime(regime, lambda rows: quantiles(ratio[rows])),
        error=_by_regime(regime, lambda rows: errors(ratio[rows]).as_dict() | covered(ratio[rows], folds[rows])),
        rows={"fitted": len(ratio), "folds": FOLDS},
    )


def _predict(sample: Sample, constants: Constants, others: Efficiency) -> tuple[Array, Array]:
    efficiency = trial(sample.family, constants, others)
    parts = [seconds(rows, efficiency) for rows in sample.rows]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _constants(sample: Sample, others: Efficiency, without: int | None) -> dict[str, float]:
    """Least squares of log(predicted / measured) over the rows outside one fold."""
    from scipy.optimize import least_squares

    family = FAMILIES[sample.family]
    free = [c for c in family.constants if c.low < c.high and not c.choices]
    fixed = {c.name: c.start for c in family.constants}
    kept = np.concatenate(sample.folds) != (-1 if without is None else without)
    measured = np.concatenate([rows.measured_s for rows in sample.rows])[kept]
    start = np.array([c.start for c in free])
    scale = np.maximum(np.abs(start), 1e-3)
    pull = np.array([PULL / max(abs(c.start), REACH * (c.high - c.low)) for c in free])
    bounds = (np.array([c.low for c in free]) / scale, np.array([c.high for c in free]) / scale)

    def solved(settings: dict[str, float]) -> tuple[float, dict[str, float]]:
        def named(x: Array) -> dict[str, float]:
            return fixed | settings | dict(zip((c.name for c in free), map(float, x * scale), strict=True))

        def residuals(x: Array) -> Array:
            errors = np.log(_predict(sample, named(x), others)[0][kept] / measured)
            return np.concatenate((errors, pull * (x * scale - start)))

        found = least_squares(residuals, start / scale, bounds=bounds, loss="soft_l1", f_scale=OUTLIER)
        return float(found.cost), named(found.x)

    plain, *others_tried = [solved(settings) for settings in _settings(family)]
    best_cost, best = min(others_tried, key=lambda tried: tried[0], default=plain)
    if best_cost > plain[0] * (1.0 - WORTH):
        best = plain[1]
    return {name: float(f"{value:.5g}") for name, value in best.items()}


def _settings(family: Family) -> Iterator[dict[str, float]]:
    """Every combination of what a fit tries in turn."""
    chosen = [c for c in family.constants if c.choices]
    for values in product(*(c.choices for c in chosen)):
        yield dict(zip((c.name for c in chosen), values, strict=True))


def _range(sample: Sample) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for rows in sample.rows:
        for name, value in FAMILIES[sample.family].covers(rows.operators[-1], rows.chip).items():
            low, high = found.get(name, (np.inf, 0.0))
            found[name] = (min(low, float(np.min(value))), max(high, float(np.max(value))))
    return found


def _by_regime(regime: Array, of: Callable[[Any], Any]) -> dict[str, Any]:
    """A figure over all rows, and over those of each regime that has enough."""
    found = {"all": of(np.ones(len(regime), dtype=bool))}
    for at, name in enumerate(REGIMES):
        rows = regime == at
        if rows.sum() >= 2 * LEAST_ROWS:
            found[name] = of(rows)
    return found
