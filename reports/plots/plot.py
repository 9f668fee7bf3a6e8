"""Plots from Python: results or a frame of points -> Figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.planning.advise import Advice
from llmviewer.planning.elasticity import Elasticities
from llmviewer.planning.require import Required
from llmviewer.planning.why import Why
from llmviewer.reports.plots import KINDS, PlotData, PlotKind
from llmviewer.reports.plots.style import SIZES, THEMES, Style
from llmviewer.result.comparison import OPTION_COLUMNS, Comparison
from llmviewer.result.crossover import Crossover
from llmviewer.result.result import Result
from llmviewer.result.sweep import Sweep
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    from typing import Unpack

    import pandas as pd
    from matplotlib.figure import Figure

    Drawable: TypeAlias = (
        Result
        | Sequence[Result]
        | Mapping[str, Result]
        | Comparison
        | Sweep
        | Crossover
        | Simulation
        | Why
        | pd.DataFrame
    )


#: Data of a plot -> the type that states it.
OF_ONE_TYPE: Mapping[PlotData, type] = {
    PlotData.LOAD: Simulation,
    PlotData.PAIR: Why,
    PlotData.ADVICE: Advice,
    PlotData.ELASTICITY: Elasticities,
    PlotData.REQUIRED: Required,
}
#: Columns of every frame of points that the plots read.
POINT_COLUMNS = ("model", "hardware", "batch_size", "input_len", "output_len")


class PlotOptions(TypedDict, total=False):
    """Options that some kinds take; VALUES says what each is."""

    metric: str
    title: str
    over: str
    target_s: float
    measured: pd.DataFrame
    all_roofs: bool


#: Option of some kinds -> whether a value is one, and what it is.
VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "metric": (lambda value: isinstance(value, str), "the name of a metric"),
    "title": (lambda value: isinstance(value, str), "a text"),
    "over": (lambda value: isinstance(value, str), "the name of a figure of the chip, such as bandwidth"),
    "target_s": (lambda value: type(value) in (int, float) and value > 0.0, "a time of a decode step above 0 [s]"),
    "all_roofs": (lambda value: isinstance(value, bool), "True for the roofs of unused units too"),
    "measured": (lambda value: hasattr(value, "columns"), "a frame of measured operators: stage, name, time_s"),
}
#: Columns that name a configuration where they differ, before the options of techniques.
NAMING_COLUMNS = ("model", "hardware", "dtype", "efficiency", "engine")


def plot(
    kind: str, data: Drawable, *, theme: str = "light", style: str = "page", **options: Unpack[PlotOptions]
) -> Figure:
    """The Figure of one kind of plot; show it in a notebook, or `figure.savefig("roofline.pdf")`.

    kind: a name of `llmviewer plot list`.  data: a Result, several by name or in a list, a Comparison, a Sweep, a
    Crossover (kind crossover), a Simulation (kinds of loads), a Why (kind factors), an Advice (kind advice),
    Elasticities (kind elasticity), a Required (kind frontier), or a frame of points as of `to_frame()`.  theme: light
    or dark.  style: paper (one column), page, slide.  options: of the kind (metric, measured, title, all_roofs).
    Raises UserError.
    """
    if kind not in KINDS:
        raise unknown("kind of plot", kind, KINDS)
    chosen, look = KINDS[kind], style_of(theme, style)
    if chosen.metrics and chosen.data is PlotData.POINT:
        options.setdefault("metric", chosen.metrics[0])
    found = _taken(kind, chosen, data)
    _check_options(kind, options, [*signature(_drawer(chosen, found)).parameters.values()][2:])  # after data and style
    return drawn(chosen, found, look, options)


def _check_options(kind: str, options: Mapping[str, Any], parameters: Sequence[Parameter]) -> None:
    """Raise UserError for an option that the kind does not have, a wrong value, or one that is missing."""
    allowed = {one.name: one for one in parameters if one.name in VALUES}
    for name, value in options.items():
        if name not in allowed:
            none = UserError(f"plot {kind} has no option {quoted(name)}, and no other")
            raise unknown(f"option of plot {kind}", name, allowed) if allowed else none
        is_one, expected = VALUES[name]
        if not is_one(value):
            raise UserError(f"{name} is {quoted(value)}; expected {expected}")
    for name, one in allowed.items():
        if one.default is Parameter.empty and name not in options:
            raise UserError(f"plot {kind} needs {name}: {VALUES[name][1]}")


def style_of(theme: str, style: str) -> Style:
    """The colours and sizes of a theme and a style by name.  Raises UserError."""
    for noun, word, known in (("theme", theme, THEMES), ("style", style, SIZES)):
        if word not in known:
            raise unknown(noun, word, known)
    return Style(theme=THEMES[theme], size=SIZES[style])


def drawn(kind: PlotKind, data: Any, style: Style, options: Mapping[str, Any]) -> Figure:
    """The Figure of data of the type that the kind takes; a curve also takes a frame of points."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a `$` in a name must not start a formula
        return _drawer(kind, data)(data, style, **options)


def _drawer(kind: PlotKind, data: Any) -> Callable[..., Figure]:
    """The function that draws the kind: from a frame of points, or from results, maps and tables."""
    module = import_module(f"llmviewer.reports.plots.{kind.module}")
    found: Callable[..., Figure] = module.draw if _is_frame(data) and kind.data is PlotData.CURVE else module.picture
    return found


def _is_frame(data: object) -> bool:
    return hasattr(data, "columns") and hasattr(data, "iloc")


def _taken(name: str, kind: PlotKind, data: Any) -> Any:
    """The data as a kind of plot takes it.  Raises UserError for data of another kind."""
    needs = kind.data
    if needs in OF_ONE_TYPE:
        wanted = OF_ONE_TYPE[needs]
        if not isinstance(data, wanted):
            raise UserError(f"plot {name} takes a {wanted.__name__}, not a {type(data).__name__}")
        return data
    takes = {PlotData.MAP: "a Crossover", PlotData.TABLE: "a frame of rows", PlotData.LEDGER: "a frame of rows"}
    if needs in takes:
        if isinstance(data, Crossover) is (needs is PlotData.MAP) and (needs is PlotData.MAP or _is_frame(data)):
            return data
        raise UserError(f"plot {name} takes {takes[needs]}, not a {type(data).__name__}")
    if needs is PlotData.CURVE and (_is_frame(data) or isinstance(data, Sweep)):
        return _points(name, data if _is_frame(data) else data.to_frame())
    results = _results(data)
    if results is None:
        raise UserError(f"plot {name} takes a Result or several, not a {type(data).__name__}")
    if not kind.fewest <= len(results) <= kind.most:
        allowed = f"{kind.fewest}" if kind.fewest == kind.most else f"{kind.fewest} to {kind.most}"
        raise UserError(f"plot {name} takes {allowed} results, not {len(results)}")
    return results


def _points(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame of points with names.  Raises UserError for a frame of something else."""
    missing = [column for column in POINT_COLUMNS if column not in rows]
    if missing or rows.empty:
        lacks = f"it has no column {', '.join(missing)}" if missing else "it has no rows"
        raise UserError(f"plot {name} takes a frame of points as of to_frame(); {lacks}")
    return _with_names(rows)


def _results(data: Any) -> dict[str, Result] | None:
    """Results by name; None for other data."""
    if isinstance(data, Mapping):
        return dict(data) if all(isinstance(one, Result) for one in data.values()) else None
    listed = data.results if isinstance(data, Comparison) else [data] if isinstance(data, Result) else data
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, Result) for one in listed):
        return None
    if not listed:
        return {}
    frames = _with_names(_frame_of(listed))
    return dict(zip(frames["configuration"], listed, strict=True))


def _frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """The first point of each result."""
    import pandas as pd

    return pd.concat([pd.DataFrame(one.columns()).head(1) for one in results], ignore_index=True)


def _with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column `configuration`: the options that differ, else model and chip."""
    if "configuration" in rows:
        return rows
    candidates = [name for name in (*NAMING_COLUMNS, *OPTION_COLUMNS) if name in rows]
    names = [name for name in candidates if rows[name].nunique() > 1] or ["model", "hardware"]
    joined = rows[names].astype(str).agg(", ".join, axis=1)
    return rows.assign(configuration=joined)
