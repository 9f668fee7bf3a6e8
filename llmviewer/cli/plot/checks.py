"""What a picture asked with these words cannot show: a metric that is not there, measurements that fit nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.core.errors import UserError, quoted

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.result.result import Result


def check_drawable(of: Any, extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Raise for what cannot be shown; what is left out, in words.  of, extra: what the picture is given."""
    if "metric" in extra:
        _metric(of, str(extra["metric"]))
    return _measured(of, extra["measured"]) if "measured" in extra else ()


def _metric(results: Mapping[str, Result], name: str) -> None:
    for result in results.values():
        if not np.isfinite(float(result.to_frame()[name].iloc[0])):
            raise UserError(f"there is no {name} of one output token; give --output-len 2 or more, or another --metric")


def _measured(results: Mapping[str, Result], rows: pd.DataFrame) -> tuple[str, ...]:
    """rows: of `stage`, `name`, `time_s`; those of other operators are left out."""
    import pandas as pd

    times = pd.to_numeric(rows["time_s"], errors="coerce").to_numpy(float)
    wrong = np.flatnonzero(~(np.isfinite(times) & (times > 0.0)))
    if len(wrong):
        raise UserError(f"time_s is {quoted(rows['time_s'].iloc[wrong[0]])}; allowed: seconds above 0")
    there = pd.concat([one.operators()[["stage", "name"]] for one in results.values()])
    known = set(there.itertuples(index=False, name=None))
    other = [row for row in rows[["stage", "name"]].itertuples(index=False, name=None) if row not in known]
    if len(other) == len(rows):
        raise UserError("no row of --measured names an operator of the model, as `llmviewer analyze` lists them")
    if not other:
        return ()
    first = quoted(" ".join(map(str, other[0])))
    return (f"{len(other)} of {len(rows)} measured rows name no operator: {first} ...",)
