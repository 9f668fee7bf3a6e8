"""Points of a sweep for curves: batch sizes and lengths of one configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmviewer.reports.report import Report
from llmviewer.reports.web.view import View
from llmviewer.result.sweep import Grid, Sweep


def points(view: View, batches: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, list[Any]]:
    """Columns of all combinations of sizes, with the name of the configuration.  Raises UserError."""
    grid = Grid(batch_sizes=_sizes(batches), input_lens=_sizes(inputs), output_lens=_sizes(outputs))
    found: dict[str, list[Any]] = {}
    for columns in Sweep(configurations=(view.configuration,), grid=grid).chunks(lambda _: None):
        count = len(columns["batch_size"])
        for name, values in {"configuration": [view.name] * count, **columns}.items():
            found.setdefault(name, []).extend(np.asarray(values).tolist())
    return found


def _sizes(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.unique(np.asarray(values, dtype=np.float64))


def report(view: View, columns: dict[str, list[Any]]) -> Report:
    """The report of a view with points, which curves read."""
    return Report(results={view.name: view.result}, points=columns)
