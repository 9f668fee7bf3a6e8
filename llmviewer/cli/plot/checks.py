"""Checks before a plot is drawn: is the metric defined, do measured rows match operators of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.result.result import Result


def check_drawable(data: Any, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Warnings about omitted rows.  Raises UserError if nothing can be drawn.

    data, options: arguments of the plot's `picture` function."""
    if "metric" in options:
        _check_metric(data, str(options["metric"]))
    return _check_measured(data, options["measured"]) if "measured" in options else ()


def _check_metric(results: Mapping[str, Result], name: str) -> None:
    for result in results.values():
        if not np.isfinite(float(result.to_frame()[name].iloc[0])):
            raise UserError(
                f"{name} is undefined for one output token; give --output-len 2 or more, or another --metric"
            )


def _check_measured(results: Mapping[str, Result], rows: pd.DataFrame) -> tuple[str, ...]:
    """Warnings about rows that match no operator.  rows: columns `stage`, `name`, `time_s`."""
    import pandas as pd

    times = pd.to_numeric(rows["time_s"], errors="coerce").to_numpy(float)
    invalid = np.flatnonzero(~(np.isfinite(times) & (times > 0.0)))
    if len(invalid):
        raise UserError(f"time_s is {quoted(rows['time_s'].iloc[invalid[0]])}; allowed: seconds above 0")
    operators = pd.concat([one.operators[["stage", "name"]] for one in results.values()])
    known = set(operators.itertuples(index=False, name=None))
    unmatched = [row for row in rows[["stage", "name"]].itertuples(index=False, name=None) if row not in known]
    if len(unmatched) == len(rows):
        raise UserError("no row of --measured matches an operator of the model (`llmviewer analyze` lists them)")
    if not unmatched:
        return ()
    first = quoted(" ".join(map(str, unmatched[0])))
    return (f"{len(unmatched)} of {len(rows)} measured rows match no operator and are left out: {first} ...",)
