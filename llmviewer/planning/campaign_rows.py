"""Rows of campaigns, kind by kind: what a worker computes for one chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.planning.call import size
from llmviewer.planning.sizing import Sizing
from llmviewer.result import columns as of_results
from llmviewer.result.sweep import Grid, parse_values
from llmviewer.simulation.call import simulate
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.result import METRICS, Simulation

Columns = dict[str, Any]
#: Fields of a simulation's JSON object that its row shows otherwise, or not.
NOT_CELLS = ("schema", "intervals", "limits", "refused", *METRICS)


@lru_cache(maxsize=8)
def grid_of(batch_size: str, input_len: str, output_len: str) -> Grid:
    """The grid of three lists as they are typed.  Raises UserError."""
    return Grid(
        batch_sizes=parse_values("batch_size", batch_size),
        input_lens=parse_values("input_len", input_len),
        output_lens=parse_values("output_len", output_len),
    )


def sweep_rows(words: Mapping[str, Any]) -> Columns:
    """Columns of some points of a grid on one configuration, as of `Sweep.chunks`.

    words: `configuration` (options with model and hardware), `grid` (three lists), `points` (first and last + 1) and
    `columns` (names of all, since ideal times have no bounds).
    """
    one = api.configuration(**words["configuration"])
    requests = grid_of(*words["grid"]).chunks(one.token_budget, one.most_points, range(*words["points"]))
    return of_results.joined([one.answer(request).columns() for request in requests], words["columns"])


def simulation_rows(words: Mapping[str, Any]) -> Columns:
    """The row of one simulation.  words: `options` of `simulate`, and `shown`, names of those that the row states."""
    made = simulate(**words["options"])
    shown = {name: str(words["options"][name]) for name in words["shown"] if words["options"][name] is not None}
    return one_row({**dict.fromkeys(words["shown"], ""), **shown, **simulation_cells(made)})


def simulation_cells(made: Simulation) -> dict[str, object]:
    """Cells of a simulation: what its JSON object says, in names of columns like those of a sweep."""
    document = made.to_dict()
    cells = {name: _cell(value) for name, value in document.items() if name not in NOT_CELLS}
    bounds = document["intervals"].get("calibration", {})
    for metric in METRICS:
        name = metric.removesuffix("_s")
        for statistic in STATISTICS:
            cells[f"{name}_{statistic}_s"] = document[metric][statistic]
            low, high = bounds.get(metric, {}).get(statistic, {}).get("80", (None, None))
            cells |= {f"{name}_{statistic}_low80_s": low, f"{name}_{statistic}_high80_s": high}
    low, high = bounds.get("output_tokens_per_s", {}).get("80", (None, None))
    cells |= {"output_tokens_per_s_low80": low, "output_tokens_per_s_high80": high}
    broken = (f"{one.metric.removesuffix('_s')} {one.statistic} <= {one.seconds:g} s" for one in made.broken)
    return {**cells, "refused": sum(document["refused"].values()), "holds": made.holds, "broken": ", ".join(broken)}


def size_rows(words: Mapping[str, Any]) -> Columns:
    """The row of one sizing of one chip.  words: `options` of `size`, and `shown`, those that the row states."""
    made = size(**words["options"])
    shown = {name: str(words["options"][name]) for name in words["shown"] if words["options"][name] is not None}
    return one_row({**dict.fromkeys(words["shown"], ""), **shown, **sizing_cells(made)})


def sizing_cells(made: Sizing) -> dict[str, object]:
    """Cells of a sizing: figures of the best configuration, undefined without one, or the gate that rejects."""
    names = "devices replicas request_rate_per_replica ttft_s tpot_s probability usd_per_hour watts head_room".split()
    names += ["output_tokens_per_s_per_device", "usd_per_million_output_tokens", "joules_per_output_token"]
    best = made.rows()[0] if made.best is not None else {}
    rejected = made.rejected[0].gate.text if made.rejected else ""
    texts = {"options": best.get("options", ""), "command": best.get("command", ""), "rejected": rejected}
    asked = {"model": made.question.model_name, "hardware": str(made.question.hardware[0])}
    rate = {"request_rate": made.question.workload.rate, "feasible": made.best is not None, "searched": made.searched}
    return {**asked, **rate, **{name: best.get(name) for name in names}, **texts}


def _cell(value: Any) -> Any:
    """The value of a cell; lists of texts become one text."""
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def one_row(cells: Mapping[str, object]) -> Columns:
    """Columns of one row of texts and numbers; None is an undefined number."""
    return {name: _column(value) for name, value in cells.items()}


def _column(value: object) -> Any:
    if isinstance(value, str):
        return np.array([value], dtype=object)
    return np.array([np.nan if value is None else value])


#: Kind of a campaign -> function that computes the columns of a chunk; `model` and `hardware` are the same in all rows.
KINDS: Mapping[str, Callable[[Mapping[str, Any]], Columns]] = {
    "sweep": sweep_rows,
    "simulate": simulation_rows,
    "size": size_rows,
}
