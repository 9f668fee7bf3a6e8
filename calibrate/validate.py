"""Score predictions on measurements: errors, bias and coverage by device, kernel and regime, and roofline errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.conformal import errors
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    import pandas as pd

#: Column names of kernel tables [us].
KERNEL_COLUMNS = {"measured": "latency_us", "predicted": "predicted_us", "ideal": "ideal_us", "suffix": "_us"}
#: Fields of a score that name its group.
KEYS = ("device", "kernel", "regime")


@frozen
class Score:
    """Errors of a group of rows: mean and median of |predicted / measured - 1|.

    bias: median of predicted / measured - 1.  ideal_mape: MAPE of the data-sheet roofline.
    covered80, covered95: shares of the rows inside the intervals.
    """

    device: str
    kernel: str
    regime: str
    rows: int
    mape: float
    median: float
    bias: float
    covered80: float
    covered95: float
    ideal_mape: float


@frozen
class Validation:
    """Scores of every group and of all rows.  left_out: reason -> rows that were not predicted."""

    scores: tuple[Score, ...]
    total: Score | None
    left_out: dict[str, int]

    def document(self) -> dict[str, Any]:
        """JSON document of the validation."""
        total = None if self.total is None else asdict(self.total)
        scores = [asdict(score) for score in self.scores]
        return {"schema": "llmviewer.validation/1", "scores": scores, "total": total, "not_predicted": self.left_out}


def validate(predictions: pd.DataFrame, keys: Sequence[str], names: dict[str, str]) -> Validation:
    """Score a table with predictions.

    keys: columns for device, kernel and regime.  names: column names, as KERNEL_COLUMNS.
    """
    predicted_rows = predictions[predictions[names["predicted"]].notna()]
    scores = [
        _score_group([str(word) for word in words], group, names)
        for words, group in predicted_rows.groupby(list(keys), sort=True)
    ]
    reasons = predictions.loc[predictions[names["predicted"]].isna(), "reason"].value_counts()
    total = _score_group(["all", "all", "all"], predicted_rows, names) if len(predicted_rows) else None
    left_out = {str(reason): int(count) for reason, count in reasons.items()}
    return Validation(scores=tuple(scores), total=total, left_out=left_out)


def _score_group(words: Sequence[str], rows: pd.DataFrame, names: dict[str, str]) -> Score:
    measured, predicted, ideal = (
        rows[names[column]].to_numpy(dtype=np.float64) for column in ("measured", "predicted", "ideal")
    )
    found, plain = errors(measured / predicted), errors(measured / ideal)
    device, kernel, regime = words
    return Score(
        device=device,
        kernel=kernel,
        regime=regime,
        rows=found.rows,
        mape=found.mape,
        median=found.median,
        bias=found.bias,
        covered80=_coverage(rows, "80", measured, names),
        covered95=_coverage(rows, "95", measured, names),
        ideal_mape=plain.mape,
    )


def _coverage(rows: pd.DataFrame, level: str, measured: Any, names: dict[str, str]) -> float:
    low, high = (rows[f"{end}{level}{names['suffix']}"].to_numpy(dtype=np.float64) for end in ("low", "high"))
    return float(np.mean((low <= measured) & (measured <= high)))
