"""Predict tables of published end-to-end figures, in the unit of each row, with intervals.

Rows of one configuration are evaluated together as arrays.  Rows that cannot be predicted get a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.cells import number
from llmviewer.calibrate.e2e_rows import REQUEST_COLUMNS, RequestCase, case_of
from llmviewer.calibrate.e2e_runs import (
    IMPOSSIBLE_REASON,
    POSSIBLE_SHARE,
    RATE_METRICS,
    CaseGroup,
    EvaluationOptions,
    evaluate_groups,
)
from llmviewer.calibrate.lower_bound import share_of_roofline
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.result.interval import metric_bounds

if TYPE_CHECKING:
    import pandas as pd

#: Added columns, in the unit of the row's value.
REQUEST_PREDICTION_COLUMNS = ("predicted", "low80", "high80", "low95", "high95")
#: Further added columns: roofline value, source of the kernels, preset, layout of the devices, and why a row is not
#: predicted.
REQUEST_INFO_COLUMNS = ("ideal", "basis", "preset", "layout", "reason")
#: Columns of end-to-end tables -> the corresponding columns of kernel tables, for joint scores.
AS_KERNELS = {"value": "latency_us", **{name: f"{name}_us" for name in (*REQUEST_PREDICTION_COLUMNS, "ideal")}}
#: Metric of a published figure -> the time whose interval it has; rates have the inverse of it.
TIME_OF_METRIC = {
    "ttft_ms": "ttft_s",
    "tpot_ms": "tpot_s",
    "decode_tok_s": "tpot_s",
    "latency_ms": "e2e_s",
    "throughput_tok_s": "e2e_s",
}
#: Bound of an interval -> its index in profile.QUANTILES.
QUANTILE_INDEX = {"low95": 0, "low80": 1, "high80": 2, "high95": 3}


def is_request_table(columns: Any) -> bool:
    """Whether these are the columns of a table of end-to-end figures."""
    return set(REQUEST_COLUMNS) <= set(columns)


def predict(
    frame: pd.DataFrame, options: PredictionOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table with REQUEST_PREDICTION_COLUMNS and REQUEST_INFO_COLUMNS added; no row is dropped.

    on_progress: called with the number of rows done.
    """
    missing = [name for name in REQUEST_COLUMNS if name not in frame.columns]
    if missing:
        raise UserError(f"end-to-end figures need the columns {', '.join(missing)}; see docs/guide/calibration.md")
    device = options.hardware if isinstance(options.hardware, str) else options.hardware.name
    predictions = frame.copy()
    for name in (*REQUEST_PREDICTION_COLUMNS, "ideal"):
        predictions[name] = np.nan
    for name in REQUEST_INFO_COLUMNS[1:]:
        predictions[name] = ""
    cases: dict[int, RequestCase] = {}
    for at, row in enumerate(frame.to_dict("records")):
        try:
            check_value(row["value"])
            cases[at] = case_of({str(key): value for key, value in row.items()}, device)
        except UserError as error:
            predictions.loc[frame.index[at], "reason"] = error.marked
    for part in evaluate_groups(cases, EvaluationOptions(profile=options.profile)):
        index = frame.index[list(part.places)]
        columns = prediction_columns(part) if isinstance(part, CaseGroup) else {"reason": part.reason}
        for name, values in columns.items():
            predictions.loc[index, name] = values
        if isinstance(part, CaseGroup) and not options.impossible:
            wrong = index[impossible(part, frame.loc[index, "value"].to_numpy(dtype=np.float64))]
            predictions.loc[wrong, REQUEST_PREDICTION_COLUMNS] = np.nan
            predictions.loc[wrong, "reason"] = IMPOSSIBLE_REASON
        on_progress(len(part.places))
    return predictions


def impossible(group: CaseGroup, measured: Array) -> list[bool]:
    """Whether each value takes less than POSSIBLE_SHARE of the roofline's time, without the engine's habits too."""
    return [
        not possible and share_of_roofline(case, float(value)) > 1.0 / POSSIBLE_SHARE
        for possible, case, value in zip(group.possible(measured), group.cases, measured, strict=True)
    ]


def check_value(value: object) -> None:
    """Raise UserError unless a published figure is a number above 0."""
    if not 0.0 < number("value", value) < np.inf:
        raise UserError("value is not a number above 0")


def prediction_columns(group: CaseGroup) -> dict[str, Any]:
    """Columns added to the rows of a group."""
    preset = group.analysis.system.engine
    values = group.values(group.analysis.times)
    ratios = interval_ratios(group)
    is_rate = np.array([case.metric in RATE_METRICS for case in group.cases])
    bounds = np.where(is_rate[:, None], values[:, None] / ratios[:, ::-1], values[:, None] * ratios)
    return {
        "predicted": values,
        **{name: bounds[:, at] for name, at in QUANTILE_INDEX.items()},
        "ideal": group.bound(),
        "basis": origin_of(group),
        "preset": preset.name,
        "layout": group.cases[0].layout.text,
    }


def interval_ratios(group: CaseGroup) -> Array:
    """Interval of every case over its value, shape (cases, 4).

    Times have the intervals that `analyze` prints, and rates their inverse.  `analyze` prints none for throughput, so
    it has the engine's own residuals of throughput if there are any.
    """
    times = metric_bounds(group.analysis)
    ratios = {name: bounds / getattr(group.analysis, name) for name, bounds in times.items()}
    engine = group.analysis.system.engine
    rows = []
    for at, case in enumerate(group.cases):
        own = engine.residuals_of((case.metric,), origin_of(group)) if case.metric == "throughput_tok_s" else None
        rows.append(np.array(own.quantiles) if own is not None else ratios[TIME_OF_METRIC[case.metric]][:, at])
    return np.array(rows)


def origin_of(group: CaseGroup) -> str:
    """Origin of the kernels of a group, as of Calibrated.origin."""
    calibration = group.analysis.calibration
    assert calibration is not None
    return calibration.origin
