"""Roofline: performance over arithmetic intensity, a roof per memory and unit, a marker per operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import curves, marks, ticks
from llmviewer.reports.plots.roofs import Roofs, label_zones, reserve_main_roofs, reserve_ridge, scales
from llmviewer.reports.plots.roofs import draw as draw_roofs
from llmviewer.reports.plots.style import Style, colour
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The axis extends to this multiple of the ridge.
MAX_RIDGES = 150.0
#: Share of a marker's radius that labels must not cover.
MARKER_CORE = 0.7
#: Operators below this share of time do not extend the axes.
MIN_SHARE = 1e-3
STAGES = "prefill and decode step"


def frame(results: Mapping[str, Result]) -> pd.DataFrame:
    """Returns the operators of the first point of every configuration, with `share` of the stage's time.

    performance: attained FLOP/s.  ideal_performance: its bound.  Operators without FLOP or traffic are left out.
    """
    import pandas as pd

    rows = []
    for name, result in results.items():
        operators = result.operators
        operators["configuration"], operators["efficiency"] = name, result.efficiency
        spent = operators["time_s"] * operators["layers"]
        operators["share"] = spent / spent.groupby(operators["stage"]).transform("sum")
        operators["performance"] = operators["flops"] / operators["time_s"]
        operators["ideal_performance"] = operators["flops"] / operators["ideal_time_s"]
        rows.append(operators[(operators["flops"] > 0) & (operators["arithmetic_intensity"] > 0)])
    return pd.concat(rows, ignore_index=True)


def roofs(results: Mapping[str, Result], *, unused: bool = True) -> pd.DataFrame:
    """Returns the roofs of every chip once.  unused: also those of units and memories that bound no operator."""
    import pandas as pd

    found = [(result.roofs(), result.operators) for result in results.values()]
    shown = [rows if unused else rows[_used(rows, operators)] for rows, operators in found]
    return pd.concat(shown, ignore_index=True).drop_duplicates()


def _used(rows: pd.DataFrame, operators: pd.DataFrame) -> pd.Series[bool]:
    """Returns whether matrices are multiplied in each unit, or operators bound by it; device memory always counts."""
    dtypes = operators.loc[operators["matmul_flops"] > 0, "compute_dtype"]
    used = {"device memory", *(f"tensor {dtype}" for dtype in dtypes)}
    used |= {{"l2": "L2", "vector": "vector fp32"}.get(bound, "") for bound in operators["bound"]}

    def is_used(what: str) -> bool:
        unit, _, dtypes = what.partition(" ")
        return what in used or any(f"{unit} {dtype}" in used for dtype in dtypes.split(", "))

    found, compute = rows["what"].map(is_used), rows["roof"] == "compute"
    return found if (found & compute).any() else found | compute


def picture(
    results: Mapping[str, Result], style: Style, measured: pd.DataFrame | None = None, *, all_roofs: bool = False
) -> Figure:
    """Plots configurations with one point each.  measured: rows for `joined`.  all_roofs: also unused ones."""
    operators = frame(results)
    shown = operators if measured is None else joined(operators, measured)
    return draw(shown, roofs(results, unused=all_roofs), style, title(results))


def title(results: Mapping[str, Result]) -> str:
    """Returns models, chips, stages, and what all configurations have in common: techniques, sizes, efficiency."""
    rows = curves.frame(results)
    names = [", ".join(dict.fromkeys(rows[name].astype(str))) for name in ("model", "hardware")]
    common = curves.common_title(rows, "model", "hardware")
    return f"{' on '.join(names)}: {STAGES}, {common}"


def joined(operators: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Returns the operators with `measured`, their measured FLOP/s.

    measured: rows of `stage`, `name` and `time_s` of one layer, with `configuration` if there are several.
    """
    keys = [key for key in ("configuration", "stage", "name") if key in measured.columns]
    times = measured[[*keys, "time_s"]].rename(columns={"time_s": "measured_s"})
    found = operators.merge(times, how="left", on=keys)
    return found.assign(measured=found["flops"] / found["measured_s"])


def draw(operators: pd.DataFrame, over: pd.DataFrame, style: Style, title: str = STAGES) -> Figure:
    """Draws operators of `frame` or `joined` under the roofs `over` of `roofs`."""
    from matplotlib.ticker import NullFormatter

    figure, (axes,) = style.figure()
    main = _main_rates(operators, over)
    scales(axes, *_limits(operators, over, max(_ridges(over, main))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())  # laying out empty labels takes time
    style.title(figure, title)
    marks.draw(figure, operators, style)
    marks.measured(axes, operators, style)
    style.settle(figure)  # slopes and free space are known only once the axes have their position
    inks = _inks(operators, style)
    own = [
        Roofs(rows=over[over["hardware"] == chip], main=rate, chips=len(main), ink=inks[chip])
        for chip, rate in main.items()
    ]
    space = _space(axes, operators, style)
    _draw_roofs_of_chips(space, own, style)
    ticks.place(space, marks.names(operators, style), style.size.text * 0.8)
    if len(own) == 1:
        label_zones(space, own[0].ridge, style)
    return figure


def _space(axes: Axes, operators: pd.DataFrame, style: Style) -> ticks.Space:
    """Returns the space with markers reserved."""
    shown = operators[operators["share"] > MIN_SHARE]
    space = ticks.Space(axes=axes)
    space.take_points(
        shown[["arithmetic_intensity", "performance"]].to_numpy(float),
        np.sqrt(marks.areas(shown, style) / np.pi) * MARKER_CORE,
    )
    if set(shown["efficiency"]) != {"ideal"}:
        bounds = shown[["arithmetic_intensity", "ideal_performance"]].to_numpy(float)
        space.take_points(bounds, np.full(len(bounds), np.sqrt(marks.bound_area(style) / np.pi) * MARKER_CORE))
        for (x, bound), attained in zip(bounds, shown["performance"].to_numpy(float), strict=True):
            space.take_line((x, attained), (x, bound))
    if "measured" in shown.columns:
        crosses = shown.loc[shown["measured"].notna(), ["arithmetic_intensity", "measured"]].to_numpy(float)
        space.take_points(crosses, np.full(len(crosses), style.size.text * 0.35))
    return space


def _draw_roofs_of_chips(space: ticks.Space, chips: list[Roofs], style: Style) -> None:
    """Draws the roofs of all chips, fastest memory first, and reserves their space."""
    for one in chips:
        reserve_ridge(space, one)
    for one in sorted(chips, key=lambda one: one.select("memory")[0][1], reverse=True):
        draw_roofs(space, one, style)
    for one in chips:
        reserve_main_roofs(space, one)


def _inks(operators: pd.DataFrame, style: Style) -> dict[str, str]:
    """Returns the colour of each chip's roofs: that of its configuration if each of several has its own chip."""
    chips = operators.drop_duplicates("configuration")["hardware"].astype(str).tolist()
    apart = 1 < len(chips) == len(set(chips))
    return {chip: colour(at) if apart else style.theme.ink for at, chip in enumerate(chips)}


def _main_rates(operators: pd.DataFrame, over: pd.DataFrame) -> dict[str, float]:
    """Returns per chip the rate of the matrix units that compute most FLOP."""
    rates = {}
    for chip, units in over[over["roof"] == "compute"].groupby("hardware", sort=False):
        own = operators[(operators["hardware"] == chip) & (operators["matmul_flops"] > 0)]
        work = (own["matmul_flops"] * own["layers"]).groupby(own["compute_dtype"]).sum()
        dtype = str(work.idxmax()) if len(work) else ""
        named = units[[dtype in what.replace(",", "").split()[1:] for what in units["what"]]]
        rates[str(chip)] = float((named if len(named) else units)["rate"].max())
    return rates


def _ridges(over: pd.DataFrame, main: Mapping[str, float]) -> list[float]:
    """Returns per chip the ridge of device memory and main units [FLOP/byte]."""
    slowest = over[over["roof"] == "memory"].groupby("hardware")["rate"].min()
    return [rate / float(slowest[chip]) for chip, rate in main.items()]


def _limits(
    operators: pd.DataFrame, over: pd.DataFrame, ridge: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the axis limits (x, y) around operators and roofs, with room for roof names right of the ridge.

    Operators with a negligible share of time are ignored.
    """
    shown = operators[operators["share"] > MIN_SHARE]
    intensity, performance = shown["arithmetic_intensity"], shown["performance"]
    across = (min(float(intensity.min()) / 3.0, ridge / 30.0), max(float(intensity.max()) * 25.0, ridge * MAX_RIDGES))
    highest = float(over.loc[over["roof"] == "compute", "rate"].max())
    lowest = min(float(performance.min()) / 3.0, highest / 1e3)
    if "measured" in shown.columns and shown["measured"].notna().any():
        lowest, highest = (
            min(lowest, float(shown["measured"].min()) / 3.0),
            max(highest, float(shown["measured"].max())),
        )
    return across, (lowest, 4.0 * max(highest, float(performance.max())))
