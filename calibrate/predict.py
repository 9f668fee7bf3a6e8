"""Predict measured kernel tables row by row, with intervals, or with the reason why a row is not predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.calibrate.fit import fit_key, predicted_seconds, with_constants
from llmviewer.calibrate.tables import FORMULA_COLUMNS, SHAPES, RowGroup, SkippedRows, row_groups, table_of
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable
from llmviewer.hardware.chip import Chip
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.efficiency import ideal
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

#: Columns added to a kernel table [us].
KERNEL_PREDICTION_COLUMNS = ("predicted_us", "low80_us", "high80_us", "low95_us", "high95_us")
#: Further added columns: roofline time, its bound, source of the constants, and why a row is not predicted.
KERNEL_INFO_COLUMNS = ("ideal_us", "regime", "basis", "reason")
#: Shorter kernels are a regime of their own.
SHORT_US = 20.0
#: Bounds of valid sizes: larger ones are taken as input errors; fewer devices exchange nothing.
MAX_SIZE, MAX_BYTES, MIN_GPUS = 1e9, 1e15, 2.0
#: Size columns that may be 0; all others are positive.
MAY_BE_ZERO = ("window", "prefix")
#: Columns that choose formulas but are not part of the kernel name in scores.
NOT_IN_KERNEL_NAME = ("window", "impl", "gpus", "experts", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOptions:
    """How to predict rows.

    hardware: the chip, overriding the column `device`.  profile: searched before the shipped profiles.
    """

    hardware: str | Chip = ""
    profile: Profile | None = None


def predict(
    frame: pd.DataFrame, options: PredictionOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table with KERNEL_PREDICTION_COLUMNS and KERNEL_INFO_COLUMNS added; no row is dropped.

    on_progress: called with the number of rows done.
    """
    check(frame)
    predictions = frame.copy()
    for name in KERNEL_PREDICTION_COLUMNS:
        predictions[name] = np.nan
    predictions["ideal_us"] = np.nan
    for name in KERNEL_INFO_COLUMNS[1:]:
        predictions[name] = ""
    for part in row_groups(frame, options.hardware):
        if isinstance(part, SkippedRows):
            predictions.loc[part.index, "reason"] = part.reason
        else:
            _predict_group(part, options, predictions)
        on_progress(len(part.index))
    return predictions


def check(frame: pd.DataFrame) -> None:
    """Raise UserError for invalid latencies and sizes, naming the first such row."""
    sizes = [name for name in SHAPES[table_of(frame.columns)] if name != "op"]
    for name in ("latency_us", *sizes):
        try:
            values = np.asarray(frame[name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"column {name} contains a value that is not a number: {printable(error, 80)}") from error
        wrong = np.logical_not(_allowed(name, values))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            allowed = f"{_bounds(name)} ({int(wrong.sum())} such rows)"
            raise UserError(f"{name} of row {row + 1} is {values[row]:g}; allowed: {allowed}")


def _allowed(name: str, values: Array) -> Array:
    """Mask of the valid values of a column."""
    low = MIN_GPUS if name == "gpus" else 0.0
    high = MAX_BYTES if name in ("bytes", "latency_us") else MAX_SIZE
    above = (values >= low) & ((values > 0.0) | (name in MAY_BE_ZERO))
    return np.asarray(above & (values <= high))


def _bounds(name: str) -> str:
    """Description of the valid values of a column."""
    if name == "gpus":
        return "2 or more"
    high = f" up to {MAX_BYTES if name in ('bytes', 'latency_us') else MAX_SIZE:g}"
    return f"{'numbers from 0' if name in MAY_BE_ZERO else 'positive numbers'}{high}"


def _predict_group(rows: RowGroup, options: PredictionOptions, predictions: pd.DataFrame) -> None:
    efficiency = calibrated(rows.chip, rows.engine, options.profile)
    last, family = rows.operators[-1], fit_key(rows)[0]
    try:
        # a short prompt chunk was timed with the prefill kernel, even if a model would run the decode kernel
        priced = with_constants(family, efficiency.select_fit(family, last).fit.constants, efficiency)
        predicted, _ = predicted_seconds(rows, priced)
    except UserError as error:
        predictions.loc[rows.index, "reason"] = str(error)
        return
    timing = roofline.time_operator(last, rows.chip, priced, last.traffic_bytes)
    ratios = efficiency.family_interval(family, last, rows.chip, timing) * np.ones(len(rows.measured_s))
    low95, low80, high80, high95 = predicted * ratios
    columns = zip(KERNEL_PREDICTION_COLUMNS, (predicted, low80, high80, low95, high95), strict=True)
    for name, values in columns:
        predictions.loc[rows.index, name] = values * 1e6
    bound = _ideal_times(rows)
    predictions.loc[rows.index, "ideal_us"] = bound[0] * 1e6
    predictions.loc[rows.index, "regime"] = np.where(rows.measured_s * 1e6 < SHORT_US, "< 20 us", bound[1])
    predictions.loc[rows.index, "basis"] = _bases(efficiency)


def _ideal_times(rows: RowGroup) -> tuple[Array, Array]:
    """Time on the data-sheet roofline [s], and the bound of the last operator."""
    points = np.ones(len(rows.measured_s))
    time = 0.0 * points
    for operator in rows.operators:
        timing = roofline.time_operator(operator, rows.chip, ideal, operator.traffic_bytes)
        time = time + timing.time_s
    resources = dict(timing.resources)
    computing = np.asarray(resources.get("compute", 0.0)) > resources["memory"]
    return time, np.where(computing * points > 0.0, "compute", "memory")


def _bases(efficiency: Calibrated) -> str:
    return ", ".join(dict.fromkeys(f"{found.basis} ({found.chip})" for found in efficiency.selected.values()))


def kernel_names(frame: pd.DataFrame) -> pd.Series[str]:
    """Kernel name of every row in scores: table, engine, kind of kernel and number formats."""
    table = table_of(frame.columns)
    names = [
        name for name in ("engine", *FORMULA_COLUMNS[table]) if name in frame.columns and name not in NOT_IN_KERNEL_NAME
    ]
    words = frame[names].astype(str).agg(" ".join, axis=1)
    return f"{table} " + words
