"""The roofline: arithmetic intensity against performance, a roof for every memory and unit, a marker an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from llmviewer.reports.plots import labels, marks
from llmviewer.reports.plots.curves import SHORT
from llmviewer.reports.plots.roofs import Roofs, label_zones, reserve_main_roofs, reserve_ridge, scales
from llmviewer.reports.plots.roofs import draw as draw_roofs
from llmviewer.reports.plots.style import Style, colour
from llmviewer.result.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: How far the axis goes beyond the ridge.
ROOM = 150.0
#: The part of a marker's radius that words keep clear of.
CORE = 0.7
#: Below this share they do not stretch the axes.
LEAST_SHARE = 1e-3


def frame(results: Mapping[str, Result]) -> pd.DataFrame:
    """Operators of the first point of every configuration, with their share of the stage's time.

    performance: FLOP/s of a layer's operator.  Those that multiply nothing have no place in the picture.
    """
    import pandas as pd

    rows = []
    for name, result in results.items():
        operators = result.operators()
        operators["configuration"] = name
        spent = operators["time_s"] * operators["layers"]
        operators["share"] = spent / spent.groupby(operators["stage"]).transform("sum")
        operators["performance"] = operators["flops"] / operators["time_s"]
        rows.append(operators[(operators["flops"] > 0) & (operators["arithmetic_intensity"] > 0)])
    return pd.concat(rows, ignore_index=True)


def roofs(results: Mapping[str, Result]) -> pd.DataFrame:
    """The roofs of every chip once."""
    import pandas as pd

    return pd.concat([result.roofs() for result in results.values()], ignore_index=True).drop_duplicates()


def picture(results: Mapping[str, Result], style: Style, measured: pd.DataFrame | None = None) -> Figure:
    """The picture of some configurations, each answering one point.  measured: as `joined` takes it."""
    operators = frame(results)
    return draw(operators if measured is None else joined(operators, measured), roofs(results), style)


def joined(operators: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The operators with `measured`, the FLOP/s that measurements make of them.

    measured: rows of `stage`, `name` and `time_s`, of one layer, and `configuration` where there are several.
    """
    keys = [key for key in ("configuration", "stage", "name") if key in measured.columns]
    beside = measured[[*keys, "time_s"]].rename(columns={"time_s": "measured_s"})
    found = operators.merge(beside, how="left", on=keys)
    return found.assign(measured=found["flops"] / found["measured_s"])


def draw(operators: pd.DataFrame, over: pd.DataFrame, style: Style) -> Figure:
    """operators: as of `frame`, or `joined` to measurements.  over: as of `roofs`."""
    from matplotlib.ticker import NullFormatter

    figure, (axes,) = style.figure()
    main = _main_rates(operators, over)
    scales(axes, *_limits(operators, over, max(_ridges(over, main))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())  # measuring words that say nothing takes time
    style.title(figure, _title(operators))
    marks.draw(figure, operators, style)
    marks.measured(axes, operators, style)
    style.settle(figure)  # the slope of a diagonal and the room for words are known once the axes have their place
    inks = _inks(operators, style)
    own = [
        Roofs(rows=over[over["hardware"] == chip], main=rate, chips=len(main), ink=inks[chip])
        for chip, rate in main.items()
    ]
    space = _space(axes, operators, style)
    _under(space, own, style)
    labels.place(space, marks.names(operators, style), style.size.text * 0.8)
    if len(own) == 1:
        label_zones(space, own[0].ridge, style)
    return figure


def _space(axes: Axes, operators: pd.DataFrame, style: Style) -> labels.Space:
    """The room that markers leave for words."""
    shown = operators[operators["share"] > LEAST_SHARE]
    space = labels.Space(axes=axes)
    space.take_points(
        shown[["arithmetic_intensity", "performance"]].to_numpy(float),
        np.sqrt(marks.areas(shown, style) / np.pi) * CORE,
    )
    if "measured" in shown.columns:
        crosses = shown.loc[shown["measured"].notna(), ["arithmetic_intensity", "measured"]].to_numpy(float)
        space.take_points(crosses, np.full(len(crosses), style.size.text * 0.35))
    return space


def _under(space: labels.Space, chips: list[Roofs], style: Style) -> None:
    """The roofs of all chips, the fastest memory first; what is named later keeps clear of them."""
    for one in chips:
        reserve_ridge(space, one)
    for one in sorted(chips, key=lambda one: one.of("memory")[0][1], reverse=True):
        draw_roofs(space, one, style)
    for one in chips:
        reserve_main_roofs(space, one)


def _inks(operators: pd.DataFrame, style: Style) -> dict[str, str]:
    """The colour of every chip's roofs: that of its configuration, where it has one of its own among several."""
    chips = operators.drop_duplicates("configuration")["hardware"].astype(str).tolist()
    apart = 1 < len(chips) == len(set(chips))
    return {chip: colour(at) if apart else style.theme.ink for at, chip in enumerate(chips)}


def _title(operators: pd.DataFrame) -> str:
    """What all operators have in common."""
    said = [", ".join(dict.fromkeys(operators[name].astype(str))) for name in ("model", "hardware")]
    sizes = [f"{word} {operators[name].iloc[0]:,}" for name, word in SHORT.items() if operators[name].nunique() == 1]
    return f"{said[0]} on {said[1]}: {', '.join(sizes)}"


def _main_rates(operators: pd.DataFrame, over: pd.DataFrame) -> dict[str, float]:
    """Of every chip the rate of the matrix units that most FLOPs run on."""
    rates = {}
    for chip, units in over[over["roof"] == "compute"].groupby("hardware", sort=False):
        own = operators[(operators["hardware"] == chip) & (operators["matmul_flops"] > 0)]
        work = (own["matmul_flops"] * own["layers"]).groupby(own["compute_dtype"]).sum()
        dtype = str(work.idxmax()) if len(work) else ""
        named = units[[dtype in what.replace(",", "").split()[1:] for what in units["what"]]]
        rates[str(chip)] = float((named if len(named) else units)["rate"].max())
    return rates


def _ridges(over: pd.DataFrame, main: Mapping[str, float]) -> list[float]:
    """Of every chip where device memory meets its main units [FLOP/byte]."""
    slowest = over[over["roof"] == "memory"].groupby("hardware")["rate"].min()
    return [rate / float(slowest[chip]) for chip, rate in main.items()]


def _limits(
    operators: pd.DataFrame, over: pd.DataFrame, ridge: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Decades around the operators and the roofs, the sparsest of marginal work left out; right of the ridge the
    roofs' names have room."""
    shown = operators[operators["share"] > LEAST_SHARE]
    intensity, performance = shown["arithmetic_intensity"], shown["performance"]
    across = (min(float(intensity.min()) / 3.0, ridge / 30.0), max(float(intensity.max()) * 25.0, ridge * ROOM))
    highest = float(over.loc[over["roof"] == "compute", "rate"].max())
    lowest = min(float(performance.min()) / 3.0, highest / 1e3)
    if "measured" in shown.columns and shown["measured"].notna().any():
        lowest, highest = (
            min(lowest, float(shown["measured"].min()) / 3.0),
            max(highest, float(shown["measured"].max())),
        )
    return across, (lowest, 2.5 * max(highest, float(performance.max())))
