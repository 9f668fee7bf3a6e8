"""Measured kernel tables -> predictions with intervals, row by row, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.calibrate.fit import fit_key, predicted_seconds, with_constants
from llmviewer.calibrate.tables import FORMULA_COLUMNS, SHAPES, RowGroup, SkippedRows, row_groups, table_of
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, shown
from llmviewer.hardware.chip import Chip
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.efficiency import ideal
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

#: Columns that predictions add to a kernel table [us].
KERNEL_PREDICTION_COLUMNS = ("predicted_us", "low80_us", "high80_us", "low95_us", "high95_us")
#: The baseline, what bounds the row on the data sheet, where constants come from, and why nothing was predicted.
KERNEL_INFO_COLUMNS = ("ideal_us", "regime", "basis", "reason")
SHORT_US = 20.0
#: Sizes beyond which it is a typing error; below which there is nothing to exchange; others are above nothing.
MAX_SIZE, MAX_BYTES, MIN_GPUS = 1e9, 1e15, 2.0
#: Sizes that may be nothing.
MAY_BE_ZERO = ("window", "prefix")
#: Columns that rows are not counted by, though they choose formulas.
NOT_IN_KERNEL_NAME = ("window", "impl", "gpus", "experts", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOptions:
    """How rows are predicted.  hardware: the chip, whatever `device` says.  own: a profile before the shipped ones."""

    hardware: str | Chip = ""
    own: Profile | None = None


def predict(
    frame: pd.DataFrame, asked: PredictionOptions, seen: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table with PREDICTED and OTHERS beside its own columns, every row kept.  seen: told the rows done."""
    check(frame)
    answered = frame.copy()
    for name in KERNEL_PREDICTION_COLUMNS:
        answered[name] = np.nan
    answered["ideal_us"] = np.nan
    for name in KERNEL_INFO_COLUMNS[1:]:
        answered[name] = ""
    for part in row_groups(frame, asked.hardware):
        if isinstance(part, SkippedRows):
            answered.loc[part.index, "reason"] = part.reason
        else:
            _predict_group(part, asked, answered)
        seen(len(part.index))
    return answered


def check(frame: pd.DataFrame) -> None:
    """Raise for latencies that no clock shows and sizes that no shape has, naming the first row."""
    sizes = [name for name in SHAPES[table_of(frame.columns)] if name != "op"]
    for name in ("latency_us", *sizes):
        try:
            values = np.asarray(frame[name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"column {name} holds what is no number: {shown(error, 80)}") from error
        wrong = np.logical_not(_allowed(name, values))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            allowed = f"{_bounds(name)} ({int(wrong.sum())} such rows)"
            raise UserError(f"{name} of row {row + 1} is {values[row]:g}; allowed: {allowed}")


def _allowed(name: str, values: Array) -> Array:
    """Mask of the values that a column may hold."""
    least = MIN_GPUS if name == "gpus" else 0.0
    most = MAX_BYTES if name in ("bytes", "latency_us") else MAX_SIZE
    above = (values >= least) & ((values > 0.0) | (name in MAY_BE_ZERO))
    return np.asarray(above & (values <= most))


def _bounds(name: str) -> str:
    """The same in words."""
    if name == "gpus":
        return "2 and more"
    most = f" up to {MAX_BYTES if name in ('bytes', 'latency_us') else MAX_SIZE:g}"
    return f"{'numbers from 0' if name in MAY_BE_ZERO else 'positive numbers'}{most}"


def _predict_group(rows: RowGroup, asked: PredictionOptions, answered: pd.DataFrame) -> None:
    efficiency = calibrated(rows.chip, rows.engine, asked.own)
    last, family = rows.operators[-1], fit_key(rows)[0]
    try:
        # a short chunk of a prompt is timed by the kernel of prompts, whatever a model would run
        priced = with_constants(family, efficiency.found(family, last).fit.constants, efficiency)
        predicted, _ = predicted_seconds(rows, priced)
    except UserError as error:
        answered.loc[rows.index, "reason"] = str(error)
        return
    timing = roofline.time_operator(last, rows.chip, priced, last.traffic_bytes)
    ratios = efficiency.spread(family, last, rows.chip, timing) * np.ones(len(rows.measured_s))
    low95, low80, high80, high95 = predicted * ratios
    columns = zip(KERNEL_PREDICTION_COLUMNS, (predicted, low80, high80, low95, high95), strict=True)
    for name, values in columns:
        answered.loc[rows.index, name] = values * 1e6
    bound = _ideal_times(rows)
    answered.loc[rows.index, "ideal_us"] = bound[0] * 1e6
    answered.loc[rows.index, "regime"] = np.where(rows.measured_s * 1e6 < SHORT_US, "< 20 us", bound[1])
    answered.loc[rows.index, "basis"] = _bases(efficiency)


def _ideal_times(rows: RowGroup) -> tuple[Array, Array]:
    """Seconds on the data sheet's roofline, and which roof holds the last operator."""
    points = np.ones(len(rows.measured_s))
    time = 0.0 * points
    for operator in rows.operators:
        timing = roofline.time_operator(operator, rows.chip, ideal, operator.traffic_bytes)
        time = time + timing.time_s
    resources = dict(timing.resources)
    computing = np.asarray(resources.get("compute", 0.0)) > resources["memory"]
    return time, np.where(computing * points > 0.0, "compute", "memory")


def _bases(efficiency: Calibrated) -> str:
    return ", ".join(dict.fromkeys(f"{found.basis} ({found.chip})" for found in efficiency.known.values()))


def kernel_names(frame: pd.DataFrame) -> pd.Series[str]:
    """What a row is counted under: its engine, kind of kernel and number formats."""
    table = table_of(frame.columns)
    names = [
        name for name in ("engine", *FORMULA_COLUMNS[table]) if name in frame.columns and name not in NOT_IN_KERNEL_NAME
    ]
    words = frame[names].astype(str).agg(" ".join, axis=1)
    return f"{table} " + words
