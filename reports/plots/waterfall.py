"""Waterfall: contributions to the difference between two configurations, which add up exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.core.kinds import Kind
from llmviewer.language.quantity import LATENCIES
from llmviewer.reports import format as fmt
from llmviewer.reports.plots import bars, curves, ticks
from llmviewer.reports.plots.style import Style
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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
    found = (table[second] - table[first]).sort_values(key=lambda seconds: -seconds.abs())
    changes = {str(name): float(seconds) for name, seconds in found.items()}
    return through((first, float(table[first].sum())), (second, float(table[second].sum())), changes)


def through(first: tuple[str, float], second: tuple[str, float], changes: Mapping[str, float]) -> pd.DataFrame:
    """Returns bars from a named total through changes in their order to another total; the smallest are summed last."""
    import pandas as pd

    (name, before), (end, after) = first, second
    largest = max(abs(before), abs(after))
    some = {n: c for n, c in changes.items() if abs(c) > 1e-12 * largest}
    shown = [n for n in sorted(some, key=lambda n: -abs(some[n])) if abs(some[n]) > MIN_CHANGE * largest][:MAX_CHANGES]
    kept = [(n, c) for n, c in some.items() if n in shown]
    if len(some) > len(kept):
        kept.append((bars.OTHER, sum(c for n, c in some.items() if n not in shown)))
    starts = before + np.cumsum([0.0, *(c for _, c in kept)])
    found = [(name, 0.0, before), *((n, at, c) for (n, c), at in zip(kept, starts, strict=False)), (end, 0.0, after)]
    return pd.DataFrame(found, columns=["name", "start", "change"])


def picture(results: Mapping[str, Result], style: Style, metric: str = "tpot_s") -> Figure:
    """Plots two configurations with one point each."""
    return draw(
        frame(results, metric),
        style,
        f"{LATENCIES[metric].heading}: {curves.common_title(curves.frame(results))}",
    )


def draw(rows: pd.DataFrame, style: Style, title: str = "") -> Figure:
    """Draws rows of `frame` of two configurations."""
    return draw_steps(steps(rows), style, title, efficiency=set(rows["efficiency"]))


def draw_steps(found: pd.DataFrame, style: Style, title: str, *, efficiency: set[str]) -> Figure:
    """Draws bars of `through`.  efficiency: kinds of times of both totals."""
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
    axes.set_ylabel(f"{'Ideal time' if efficiency == {'ideal'} else curve.title} ({curve.unit})")
    axes.use_sticky_edges = False  # otherwise the label above a bar that starts at the top has no room
    axes.margins(y=0.1)
    axes.set_ylim(bottom=min(0.0, float(ends.min())))
    axes.grid(visible=False, axis="x")
    style.title(figure, title)
    looks = ((TOTAL, "total"), (FASTER, "faster"), (SLOWER, "slower"))
    style.legend_below(figure, [Patch(color=ink, label=words) for ink, words in looks])
    style.settle(figure)
    return figure
