"""Advice: the steps of a combination of changes, from the run as asked to the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.core.errors import unknown
from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.advise import Advice
from llmviewer.reports.plots import curves, waterfall
from llmviewer.reports.plots.style import Style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def frame(found: Advice) -> pd.DataFrame:
    """Returns bars `name`, `start`, `change` from the metric as asked through the steps to the combination."""
    metric = found.goal.metric
    values = [metric.of(found.result), *(metric.of(step.result) for step in found.steps)]
    changes: dict[str, float] = {}
    for step, before, after in zip(found.steps, values, values[1:], strict=False):
        ((option, value),) = step.words.items()
        name = f"{option.replace('_', ' ')} {str(value).partition(',acceptance')[0].replace(',', ', ')}"
        changes[name] = changes.get(name, 0.0) + after - before
    return waterfall.through(("as asked", values[0]), ("combined", values[-1]), changes)


def picture(found: Advice, style: Style) -> Figure:
    """Plots the combination for a metric that is a time.  Raises UserError for other metrics."""
    name = found.goal.metric.name
    if name not in LATENCIES:
        raise unknown("metric", name, LATENCIES)
    title = f"{LATENCIES[name].heading}: {curves.title_of(found.result)}"
    return waterfall.draw_steps(frame(found), style, title, efficiency={found.result.efficiency})
