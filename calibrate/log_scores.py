"""Score predictions of what engines log at start-up: errors, bias and worst optimism by engine, chip and quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    import pandas as pd

#: Quantities of which more is better; of all others, less is.
ROOM = ("total_gpu_gib", "kv_available_gib", "kv_tokens", "max_concurrency")
#: Columns that tell groups apart.
GROUP = ("engine", "gpu", "quantity", "on")


@frozen
class LogScore:
    """Errors of a group of figures: mean of |predicted / logged - 1|, and median of predicted / logged - 1.

    on: `one device` or `several devices`.  optimism: the largest error towards more room than there is; 0 if none.
    """

    engine: str
    device: str
    quantity: str
    on: str
    rows: int
    mape: float
    bias: float
    optimism: float


def log_scores(predictions: pd.DataFrame, by: tuple[str, ...] = GROUP) -> list[LogScore]:
    """Scores of every group of rows with a prediction.  by: columns that tell groups apart."""
    found = predictions[predictions["predicted"].notna()]
    found = found.assign(
        value=found["value"].astype(float), on=np.where(found["devices"] == 1, "one device", "several devices")
    )
    scores = []
    for words, rows in found.groupby(list(by), sort=True):
        named = dict(zip(by, map(str, words), strict=True))
        errors = (rows["predicted"] / rows["value"] - 1.0).to_numpy(dtype=float)
        scores.append(
            LogScore(
                engine=named.get("engine", "all"),
                device=named.get("gpu", "all"),
                quantity=named["quantity"],
                on=named.get("on", "all"),
                rows=len(errors),
                mape=float(np.mean(np.abs(errors))),
                bias=float(np.median(errors)),
                optimism=optimism(named["quantity"], errors),
            )
        )
    return scores


def optimism(quantity: str, errors: Array) -> float:
    """The largest error towards more room than there is; 0 if none.  errors: predicted / logged - 1."""
    sign = 1.0 if quantity in ROOM else -1.0
    return float(np.max(np.append(sign * errors, 0.0)))
