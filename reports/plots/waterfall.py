"""Waterfall: contributions to the difference between two configurations, which add up exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from llmviewer.core.kinds import Kind
from llmviewer.reports import format as fmt
from llmviewer.reports.plots import bars, curves, ticks
from llmviewer.reports.plots.style import Style
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WATERFALL_METRICS = {"tpot_s": "Time per output token", "e2e_s": "End-to-end latency", "ttft_s": "Time to first token"}
#: A name with its seconds.
Total: TypeAlias = tuple[str, float]
FASTER, SLOWER, TOTAL = "#009E73", "#D55E00", "#0072B2"
#: Maximum number of changes shown separately; smaller ones are summed.
MAX_CHANGES = 8
#: Minimum share of the total of a change shown separately.
MIN_CHANGE = 2e-3
#: First word of an operator's name -> group.
GROUPS = {
    "expert": "experts",
    "shared": "experts",
    "router": "experts",
    "gate": "feed-forward",
    "up": "feed-forward",
    "down": "feed-forward",
    "mlp": "feed-forward",
    "lm": "lm_head",
    "final": "lm_head",
    "logits": "lm_head",
}
#: Kind of operator -> group; "" if its name decides.
KIND_GROUPS = {kind.value: kind.facts.summary_group for kind in Kind}


def group(name: str, kind: str) -> str:
    """Returns the group of an operator; engine terms and the rest keep their names."""
    if kind in ("engine", "rest"):
        return name
    if name in ("qk_matmul", "sv_matmul"):
        return "attention"
    return KIND_GROUPS.get(kind) or GROUPS.get(name.partition("_")[0], "projections")


def frame(results: Mapping[str, Result], metric: str = "tpot_s") -> pd.DataFrame:
    """Returns rows of `configuration`, `group`, `seconds` of the first point, which add up to the metric."""
    import pandas as pd

    found = [
        one.attribution(metric).assign(configuration=name, efficiency=one.efficiency) for name, one in results.items()
    ]
    rows = pd.concat(found, ignore_index=True)
    rows["group"] = [group(str(name), str(kind)) for name, kind in zip(rows["name"], rows["kind"], strict=True)]
    return rows.groupby(["configuration", "efficiency", "group"], sort=False)["seconds"].sum().reset_index()


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns bars `name`, `start`, `change` from the first total through all changes to the second total."""
    first, second = dict.fromkeys(rows["configuration"])
    table = rows.pivot_table(index="group", columns="configuration", values="seconds", fill_value=0.0)
    changes = (table[second] - table[first]).items()
    whole = float(table[first].sum()), float(table[second].sum())
    return _chain((first, whole[0]), [(str(name), float(change)) for name, change in changes], (second, whole[1]))


def _chain(first: Total, changes: Sequence[Total], second: Total) -> pd.DataFrame:
    """Returns bars from one total to another: the largest changes one by one, the others as one."""
    import pandas as pd

    most = max(first[1], second[1])
    found = sorted((one for one in changes if abs(one[1]) > 1e-12 * most), key=lambda one: -abs(one[1]))
    shown = min(MAX_CHANGES, sum(abs(change) > MIN_CHANGE * most for _, change in found))
    kept = found[:shown]
    if len(found) > shown:
        kept.append((bars.OTHER, sum(change for _, change in found[shown:])))
    starts = first[1] + np.cumsum([0.0, *(change for _, change in kept)])
    middle = ((name, at, change) for (name, change), at in zip(kept, starts, strict=False))
    columns = ["name", "start", "change"]
    return pd.DataFrame([(first[0], 0.0, first[1]), *middle, (second[0], 0.0, second[1])], columns=columns)


def picture(results: Mapping[str, Result], style: Style, metric: str = "tpot_s") -> Figure:
    """Plots two configurations with one point each."""
    return draw(
        frame(results, metric), style, f"{WATERFALL_METRICS[metric]}: {curves.common_title(curves.frame(results))}"
    )


def draw(rows: pd.DataFrame, style: Style, title: str = "") -> Figure:
    """Draws rows of `frame` of two configurations."""
    return _drawn(steps(rows), style, title, lambda curve: curves.axis_label(rows, curve.title, curve.unit))


def between(first: Total, changes: Sequence[Total], second: Total, style: Style, title: str) -> Figure:
    """Draws named changes from one total to another, to which they add up [s]."""
    return _drawn(_chain(first, changes, second), style, title, lambda curve: f"{curve.title} [{curve.unit}]")


def _drawn(found: pd.DataFrame, style: Style, title: str, label: Callable[[curves.Curve], str]) -> Figure:
    from matplotlib.patches import Patch

    figure, (axes,) = style.figure()
    curve = curves.of_time(found.iloc[[0, -1]], "", "change", "Time")
    start, change = (found[name].to_numpy(float) / curve.scale for name in ("start", "change"))
    inks = [SLOWER if seconds > 0 else FASTER for seconds in change]
    inks[0] = inks[-1] = TOTAL
    axes.bar(np.arange(len(found)), change, 0.7, start, color=inks)
    ends = start + change
    axes.hlines(ends[:-1], np.arange(len(ends) - 1), np.arange(1, len(ends)), color=style.theme.ink, linewidth=0.6)
    for at, seconds in enumerate(change):
        sign = "" if at in (0, len(change) - 1) else "+" if seconds > 0 else "−"
        axes.annotate(
            f"{sign}{fmt.digits(abs(seconds))}", (at, max(start[at], ends[at])), xytext=(0, 2), ha="center",
            va="bottom", textcoords="offset points", fontsize=style.size.text * 0.75, color=style.theme.ink,
        )  # fmt: skip
    axes.yaxis.set_major_formatter(ticks.plain)
    bars.names(axes, list(found["name"]), style)
    axes.set_ylabel(label(curve))
    axes.use_sticky_edges = False  # otherwise the label above a bar that starts at the top has no room
    axes.margins(y=0.1)
    axes.set_ylim(bottom=min(0.0, float(ends.min())))
    axes.grid(visible=False, axis="x")
    style.title(figure, title)
    looks = ((TOTAL, "total"), (FASTER, "faster"), (SLOWER, "slower"))
    style.legend_below(figure, [Patch(color=ink, label=words) for ink, words in looks])
    style.settle(figure)
    return figure
