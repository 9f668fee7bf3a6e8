"""Fit the constants of kernel families to measured rows, with the formulas of the prediction, and report errors.

Every row is predicted once by constants fitted without its shape (cross-validation over shapes); errors and interval
quantiles come only from those predictions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from llmviewer.calibrate.conformal import coverage, errors, quantiles
from llmviewer.calibrate.tables import TABLES, RowGroup
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import missing_extra
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import REGIMES, regime_of
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.kernels.family import Constants, Family
from llmviewer.timing.profile import Fit
from llmviewer.timing.roofline import Rates, Timing

#: Number of cross-validation folds over shapes.
FOLDS = 5
#: Fewest rows of a fit; fewer would only be memorized.
MIN_ROWS = 8
#: Log error beyond which a residual counts less than its square (soft L1).
OUTLIER = 0.1
#: Losses of residuals, one after another, each from the constants of the one before; that of the host's launches, which
#: stall for whole sessions (64 us for 4 B200 where 2 take 29 and 8 take 35), hardly counts rows far from the others.
LOSSES, LOSSES_OF_LAUNCHES = ("soft_l1",), ("soft_l1", "cauchy")
#: Ending of engines whose kernels the host launched one by one.
LAUNCHED = "-eager"
#: Pull of a constant towards its start: PRIOR_PULL of log error at a distance of its start value or PRIOR_RANGE of its
#: bounds, so that constants the rows do not determine stay at their start.
PRIOR_PULL, PRIOR_RANGE = 0.03, 0.1
#: Relative cost reduction that another discrete choice needs to replace the first one.
MIN_COST_SAVING = 0.15

Efficiency = Callable[[Operator, Chip], Rates]


@frozen(eq=False)
class Sample:
    """Rows described by one set of constants, and the cross-validation fold of each row."""

    family: str
    variant: str
    engine: str
    rows: tuple[RowGroup, ...]
    folds: tuple[Array, ...]

    @property
    def key(self) -> str:
        """Key of the fit in a profile: family/variant/engine."""
        return f"{self.family}/{self.variant}/{self.engine}"


def folds_of(frame: Any, table: str) -> Array:
    """Fold of every row, from a hash of its shape only: the same in every run and for every source.

    Rows of equal text in the column `fold` share one: of few matrices with many rows each, whole ones are held out.
    """
    names = ["fold"] if "fold" in frame.columns else list(TABLES[table].shape)
    shapes = frame[names].astype(str).agg("/".join, axis=1)
    marks = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % FOLDS for text in shapes]
    return np.array(marks, dtype=np.float64)


def fit_key(rows: RowGroup) -> tuple[str, str, str]:
    """Family, variant and engine of the fit for these rows."""
    operator = rows.operators[-1]
    family = rows.family or families_of(operator)[0]
    return family, FAMILIES[family].variant(operator), rows.engine


def samples(rows: Sequence[RowGroup], folds: Sequence[Array]) -> list[Sample]:
    """Group rows by fit: family and variant of their last operator, and engine."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for at, item in enumerate(rows):
        grouped.setdefault(fit_key(item), []).append(at)
    return [
        Sample(
            family=family, variant=variant, engine=engine,
            rows=tuple(rows[at] for at in members), folds=tuple(folds[at] for at in members),
        )
        for (family, variant, engine), members in grouped.items()
    ]  # fmt: skip


def with_constants(family: str, constants: Constants, others: Efficiency) -> Efficiency:
    """Efficiency with these constants for one family, and `others` for the rest (a conversion before a GEMM)."""

    def efficiency(operator: Operator, chip: Chip) -> Rates:
        if family in families_of(operator):
            return FAMILIES[family].rates(operator, chip, constants)
        return others(operator, chip)

    return efficiency


def row_timing(rows: RowGroup, efficiency: Efficiency) -> Timing:
    """Predicted time of every row and of each resource, the sums over its operators."""
    parts = [
        roofline.time_operator(operator, rows.chip, efficiency, operator.traffic_bytes) for operator in rows.operators
    ]
    resources: dict[str, Count] = {}
    for part in parts:
        for name, seconds in part.resources:
            resources[name] = resources.get(name, 0.0) + seconds
    points = np.ones(len(rows.measured_s))
    return Timing(time_s=total(part.time_s for part in parts) * points, resources=tuple(resources.items()))


def predicted_seconds(rows: RowGroup, efficiency: Efficiency) -> tuple[Array, Array]:
    """Predicted time of every row [s], and its regime."""
    timing = row_timing(rows, efficiency)
    return np.asarray(timing.time_s), regime_of(timing) * np.ones(len(rows.measured_s))


def fit(sample: Sample, others: Efficiency) -> Fit:
    """Fit constants, and compute the fitted range and the errors on held-out rows."""
    constants = _constants(sample, others)
    folds, measured = np.concatenate(sample.folds), np.concatenate([r.measured_s for r in sample.rows])
    predicted, regime = _predict(sample, constants, others)
    for fold in range(FOLDS):
        held_out = folds == fold
        if held_out.any() and not held_out.all():
            unseen, regimes = _predict(sample, _constants(sample, others, fold, constants), others)
            predicted[held_out], regime[held_out] = unseen[held_out], regimes[held_out]
    ratio = measured / predicted
    return Fit(
        family=sample.family,
        variant=sample.variant,
        engine=sample.engine,
        constants=constants,
        range=_range(sample),
        residuals=_by_regime(regime, lambda rows: quantiles(ratio[rows])),
        error=_by_regime(regime, lambda rows: errors(ratio[rows]).as_dict() | coverage(ratio[rows], folds[rows])),
        rows={"fitted": len(ratio), "folds": FOLDS},
    )


def _predict(sample: Sample, constants: Constants, others: Efficiency) -> tuple[Array, Array]:
    efficiency = with_constants(sample.family, constants, others)
    parts = [predicted_seconds(rows, efficiency) for rows in sample.rows]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _constants(
    sample: Sample, others: Efficiency, without: int | None = None, known: Constants | None = None
) -> dict[str, float]:
    """Constants by least squares of log(predicted / measured) over the rows outside fold `without`.

    known: constants of a fit to all rows, whose discrete settings are kept and whose values are the first guess.
    """
    least_squares = _least_squares()
    family = FAMILIES[sample.family]
    free = [c for c in family.constants if c.low < c.high and not (c.choices or c.derived)]
    included = np.concatenate(sample.folds) != (-1 if without is None else without)
    measured = np.concatenate([rows.measured_s for rows in sample.rows])[included]
    start = np.array([c.start for c in free])
    scale = np.maximum(np.abs(start), 1e-3)
    pulls = np.array([PRIOR_PULL / max(abs(c.start), PRIOR_RANGE * (c.high - c.low)) for c in free])
    bounds = (np.array([c.low for c in free]) / scale, np.array([c.high for c in free]) / scale)

    def solved(guess: Constants) -> tuple[float, dict[str, float]]:
        def named(x: Array) -> dict[str, float]:
            return {**guess, **dict(zip((c.name for c in free), map(float, x * scale), strict=True))}

        def residuals(x: Array) -> Array:
            errors = np.log(_predict(sample, named(x), others)[0][included] / measured)
            return np.concatenate((errors, pulls * (x * scale - start)))

        x = np.clip(np.array([guess[c.name] for c in free]) / scale, *bounds)
        for loss in LOSSES_OF_LAUNCHES if sample.engine.endswith(LAUNCHED) else LOSSES:
            found = least_squares(residuals, x, bounds=bounds, loss=loss, f_scale=OUTLIER)
            x = found.x
        return float(found.cost), named(x)

    def felt(settings: Constants) -> bool:
        """Whether a setting changes any row; a size of all-reduces among all-gathers needs no fit of its own."""
        pairs = ((_predict(sample, start, others)[0], {**start, **settings}) for start in family.starts())
        return any(not np.array_equal(plain, _predict(sample, changed, others)[0]) for plain, changed in pairs)

    best = _with_best_settings(family, solved, felt) if known is None else solved(known)[1]
    return {name: float(f"{value:.5g}") for name, value in best.items()}


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise missing_extra("fitting needs scipy", "calibrate") from error
    return least_squares


def _with_best_settings(
    family: Family,
    solved: Callable[[Constants], tuple[float, dict[str, float]]],
    felt: Callable[[Constants], bool],
) -> dict[str, float]:
    """Constants with each discrete setting, one after another, at its best value if that saves enough cost.

    Other values are tried from all starts of the family, the first from the others only if that saves as much.
    """

    def best_of(starts: Iterable[Constants], settings: Constants) -> tuple[float, dict[str, float]]:
        return min((solved({**start, **settings}) for start in starts), key=itemgetter(0), default=(np.inf, {}))

    first, *others = family.starts()
    cost, best = solved(first)
    for constant in family.constants:
        for value in constant.choices:
            if value != constant.start and felt({constant.name: value}):
                tried = best_of((first, *others), _settings(family, best) | {constant.name: value})
                saves = MIN_COST_SAVING if best[constant.name] == constant.start else 0.0
                if tried[0] < cost * (1.0 - saves):
                    cost, best = tried
    tried = best_of(others, _settings(family, best))
    return tried[1] if tried[0] < cost * (1.0 - MIN_COST_SAVING) else best


def _settings(family: Family, constants: Constants) -> dict[str, float]:
    """The discrete ones among the constants."""
    return {constant.name: constants[constant.name] for constant in family.constants if constant.choices}


def _range(sample: Sample) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for rows in sample.rows:
        for name, value in FAMILIES[sample.family].quantities(rows.operators[-1], rows.chip).items():
            low, high = found.get(name, (np.inf, 0.0))
            found[name] = (min(low, float(np.min(value))), max(high, float(np.max(value))))
    return found


def _by_regime(regime: Array, compute: Callable[[Any], Any]) -> dict[str, Any]:
    """A value over all rows, and over the rows of each regime with enough of them."""
    found = {"all": compute(np.ones(len(regime), dtype=bool))}
    for at, name in enumerate(REGIMES):
        rows = regime == at
        if rows.sum() >= 2 * MIN_ROWS:
            found[name] = compute(rows)
    return found
