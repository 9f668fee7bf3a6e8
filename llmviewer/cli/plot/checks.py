"""Checks before a plot is drawn: is the metric defined, do measured rows match operators of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.result.result import Result

#: Longest time of an operator that is no error of input.
MAX_TIME_S = 1e6


def check_drawable(data: Any, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about omitted rows.  Raises UserError if nothing can be drawn.

    data, options: arguments of the plot's `picture` function."""
    if "metric" in options:
        _check_metric(data, str(options["metric"]))
    return _check_measured(data, options["measured"]) if "measured" in options else ()


def timed_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The rows of a measured table with a time, and a warning with the number of the others."""
    import pandas as pd

    times = pd.to_numeric(rows["time_s"], errors="coerce")
    is_time = (times > 0.0) & (times <= MAX_TIME_S)
    if not is_time.any():
        raise UserError(f"no row of --measured has a time_s above 0 and up to {MAX_TIME_S:,.0f} seconds")
    unusable = int((~is_time).sum())
    warning = f"{unusable} of {len(rows)} measured rows are left out: time_s is no number of seconds above 0"
    return rows.assign(time_s=times)[is_time].reset_index(drop=True), (warning,) if unusable else ()


def _check_metric(results: Mapping[str, Result], name: str) -> None:
    for result in results.values():
        if not np.isfinite(float(result.to_frame()[name].iloc[0])):
            raise UserError(
                f"{name} is undefined for one output token; give --output-len 2 or more, or another --metric"
            )


def _check_measured(results: Mapping[str, Result], rows: pd.DataFrame) -> tuple[str, ...]:
    """Warnings about rows that match no operator.  rows: columns `stage`, `name`, `time_s`."""
    import pandas as pd

    operators = pd.concat([one.operators[["stage", "name"]] for one in results.values()])
    known = set(operators.itertuples(index=False, name=None))
    unmatched = [row for row in rows[["stage", "name"]].itertuples(index=False, name=None) if row not in known]
    if len(unmatched) == len(rows):
        raise UserError("no row of --measured matches an operator of the model (`llmviewer analyze` lists them)")
    if not unmatched:
        return ()
    first = quoted(" ".join(map(str, unmatched[0])))
    return (f"{len(unmatched)} of {len(rows)} measured rows match no operator and are left out: {first} ...",)
