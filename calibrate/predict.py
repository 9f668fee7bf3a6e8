"""Predict measured kernel tables row by row, with intervals, or with the reason why a row is not predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.calibrate.fit import fit_key, row_timing, with_constants
from llmviewer.calibrate.tables import TABLES, RowGroup, SkippedRows, row_groups, table_of
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import Chip
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.profile import Profile
from llmviewer.timing.roofline import ideal

if TYPE_CHECKING:
    import pandas as pd

#: Columns added to a kernel table [us].
KERNEL_PREDICTION_COLUMNS = ("predicted_us", "low80_us", "high80_us", "low95_us", "high95_us")
#: Further added columns: roofline time, its bound, source of the constants, and why a row is not predicted.
KERNEL_INFO_COLUMNS = ("ideal_us", "regime", "basis", "reason")
#: Shorter kernels are a regime of their own.
SHORT_US = 20.0
#: Columns that choose formulas but are not part of the kernel name in scores.
NOT_IN_KERNEL_NAME = (
    "window", "impl", "gpus", "link", "experts", "group", "converts", "heads", "head_dim", "state", "groups",
)  # fmt: skip


@frozen
class PredictionOptions:
    """How to predict rows.

    hardware: the chip, overriding the column `device`.  profile: searched before the shipped profiles.
    lent: kernels are predicted as if no profile of the chip were shipped.  impossible: figures of whole requests
    that the roofline forbids are scored too; one's own run is worth a look, a published one is wrong in its source.
    """

    hardware: str | Chip = ""
    profile: Profile | None = None
    lent: bool = False
    impossible: bool = False


def predict(
    frame: pd.DataFrame, options: PredictionOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table with KERNEL_PREDICTION_COLUMNS and KERNEL_INFO_COLUMNS added; no row is dropped.

    on_progress: called with the number of rows done.
    """
    usable, reasons = usable_rows(frame, table_of(frame.columns))
    predictions = frame.copy()
    for name in KERNEL_PREDICTION_COLUMNS:
        predictions[name] = np.nan
    predictions["ideal_us"] = np.nan
    for name in KERNEL_INFO_COLUMNS[1:]:
        predictions[name] = ""
    predictions.loc[reasons.index, "reason"] = reasons
    on_progress(len(reasons))
    for part in row_groups(usable, options.hardware):
        if isinstance(part, SkippedRows):
            predictions.loc[part.index, "reason"] = part.reason
        else:
            _predict_group(part, options, predictions)
        on_progress(len(part.index))
    return predictions


def _predict_group(rows: RowGroup, options: PredictionOptions, predictions: pd.DataFrame) -> None:
    efficiency = calibrated(rows.chip, rows.engine, options.profile, lent=options.lent)
    try:
        predicted, ratios = priced(rows, efficiency)
    except UserError as error:
        predictions.loc[rows.index, "reason"] = error.marked
        return
    low95, low80, high80, high95 = predicted * ratios
    columns = zip(KERNEL_PREDICTION_COLUMNS, (predicted, low80, high80, low95, high95), strict=True)
    for name, values in columns:
        predictions.loc[rows.index, name] = values * 1e6
    bound = _ideal_times(rows)
    predictions.loc[rows.index, "ideal_us"] = bound[0] * 1e6
    predictions.loc[rows.index, "regime"] = np.where(rows.measured_s * 1e6 < SHORT_US, "< 20 us", bound[1])
    predictions.loc[rows.index, "basis"] = _bases(efficiency)


def priced(rows: RowGroup, efficiency: Calibrated) -> tuple[Array, Array]:
    """Predicted time of every row [s], and the bounds of its intervals over it, shape (4, rows).  Raises UserError."""
    last, family = rows.operators[-1], fit_key(rows)[0]
    found = efficiency.select_fit(family, last).fit
    # a short prompt chunk was timed with the prefill kernel, even if a model would run the decode kernel
    own = found.family == family
    timing = row_timing(rows, with_constants(family, found.constants, efficiency) if own else efficiency)
    ratios = efficiency.family_interval(family, last, rows.chip, timing) * np.ones(len(rows.measured_s))
    return np.asarray(timing.time_s), ratios


def _ideal_times(rows: RowGroup) -> tuple[Array, Array]:
    """Time on the data-sheet roofline [s], and its bound."""
    timing = row_timing(rows, ideal)
    resources = dict(timing.resources)
    computing = np.asarray(resources.get("compute", 0.0)) > resources["memory"]
    return np.asarray(timing.time_s), np.where(computing * np.ones(len(rows.measured_s)) > 0.0, "compute", "memory")


def _bases(efficiency: Calibrated) -> str:
    return ", ".join(dict.fromkeys(f"{found.basis} ({found.chip})" for found in efficiency.selected.values()))


def kernel_names(frame: pd.DataFrame) -> pd.Series[str]:
    """Kernel name of every row in scores: table, engine, kind of kernel and number formats."""
    table = table_of(frame.columns)
    names = [
        name for name in ("engine", *TABLES[table].formula) if name in frame.columns and name not in NOT_IN_KERNEL_NAME
    ]
    words = frame[names].astype(object).where(frame[names].notna(), "").astype(str).agg(" ".join, axis=1)
    return f"{table} " + words.str.rstrip()
