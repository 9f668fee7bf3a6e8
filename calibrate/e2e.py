"""Tables of published end-to-end figures -> predictions in their own unit, with intervals.

Rows of one configuration are answered in one array evaluation.  What cannot be predicted comes back with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.e2e_rows import REQUEST_COLUMNS, RequestCase, case_of
from llmviewer.calibrate.e2e_runs import RATE_METRICS, CaseGroup, EvaluationOptions, evaluate_groups
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core import data
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.timing import profile
from llmviewer.timing.calibrated import UNKNOWN_SPREAD
from llmviewer.timing.engine import Engine
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

#: Columns that predictions add, in the unit of the row's value.
REQUEST_PREDICTION_COLUMNS = ("predicted", "low80", "high80", "low95", "high95")
#: The data sheet's bound, where kernels come from, the preset, and why nothing was predicted.
REQUEST_INFO_COLUMNS = ("ideal", "basis", "preset", "reason")
#: These columns by the names of those of kernel tables, beside which they are scored.
AS_KERNELS = {"value": "latency_us", **{name: f"{name}_us" for name in (*REQUEST_PREDICTION_COLUMNS, "ideal")}}
#: How much wider the log of an interval grows where it is another basis's or another metric's.
WIDENING = 1.6
#: Where the bounds of an interval stand among profile.QUANTILES.
QUANTILE_INDEX = {"low95": 0, "low80": 1, "high80": 2, "high95": 3}


def is_request_table(columns: Any) -> bool:
    """Whether these are the columns of a table of end-to-end figures."""
    return set(REQUEST_COLUMNS) <= set(columns)


def predict(
    frame: pd.DataFrame, asked: PredictionOptions, seen: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table with PREDICTED and OTHERS beside its own columns, every row kept.  seen: told the rows done."""
    check(frame)
    device = asked.hardware if isinstance(asked.hardware, str) else asked.hardware.name
    own = asked.own
    answered = frame.copy()
    for name in (*REQUEST_PREDICTION_COLUMNS, "ideal"):
        answered[name] = np.nan
    for name in REQUEST_INFO_COLUMNS[1:]:
        answered[name] = ""
    cases: dict[int, RequestCase] = {}
    for at, row in enumerate(frame.to_dict("records")):
        try:
            cases[at] = case_of({str(key): value for key, value in row.items()}, device)
        except UserError as error:
            answered.loc[frame.index[at], "reason"] = str(error)
    for part in evaluate_groups(cases, EvaluationOptions(own=own)):
        index = frame.index[list(part.places)]
        columns = prediction_columns(part, own) if isinstance(part, CaseGroup) else {"reason": part.reason}
        for name, values in columns.items():
            answered.loc[index, name] = values
        seen(len(part.places))
    return answered


def check(frame: pd.DataFrame) -> None:
    """Raise for a column that is missing and for figures that nobody measures, naming the first row."""
    missing = [name for name in REQUEST_COLUMNS if name not in frame.columns]
    if missing:
        raise UserError(f"end-to-end figures need the columns {', '.join(missing)}; see docs/calibration.md")
    for at, value in zip(frame.index, frame["value"], strict=True):
        if not isinstance(value, (int, float)) or not np.isfinite(value) or value <= 0.0:
            raise UserError(f"row {at}: value is {value}; expected a number above 0")


def prediction_columns(group: CaseGroup, own: Profile | None) -> dict[str, Any]:
    """What is known of the rows of a group."""
    preset = group.analysis.system.engine
    bases = [basis_of(case, own) for case in group.cases]
    values = group.values(group.analysis.times)
    ratios = np.array(
        [interval_ratios(preset, case.metric, basis) for case, basis in zip(group.cases, bases, strict=True)]
    )
    falls = np.array([case.metric in RATE_METRICS for case in group.cases])
    bounds = np.where(falls[:, None], values[:, None] / ratios[:, ::-1], values[:, None] * ratios)
    return {
        "predicted": values,
        **{name: bounds[:, at] for name, at in QUANTILE_INDEX.items()},
        "ideal": group.bound(),
        "basis": bases,
        "preset": preset.name,
    }


def basis_of(case: RequestCase, own: Profile | None = None) -> str:
    """`fitted` where kernels of this very chip were measured."""
    path = data.folder(profile.FOLDER) / f"{case.hardware}.yaml"
    return "fitted" if path.is_file() or (own is not None and own.chip == case.hardware) else "transferred"


def interval_ratios(preset: Engine, metric: str, basis: str) -> Array:
    """Quantiles of measured / predicted, as times: the metric's own, else those of the other basis or of all metrics,
    wider."""
    own = preset.spread((metric,), basis)
    if own is not None:
        return np.array(own)
    others: list[Mapping[str, Any]] = [preset.residuals.get(metric, {}), *preset.residuals.values()]
    known = next((next(iter(of.values())) for of in others if of), UNKNOWN_SPREAD)
    widest: Array = np.exp(np.log(np.array(known)) * WIDENING)
    return widest
