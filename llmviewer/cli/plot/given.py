"""Data of a plot: results of configurations, a crossover map, or a table of rows from a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer import api
from llmviewer.api.figure_axis import CONTEXT, figure_axis
from llmviewer.cli import options as opt
from llmviewer.cli.plot import loads
from llmviewer.cli.plot.loads import simulated
from llmviewer.core import arguments, data
from llmviewer.core.arguments import parse_number
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.parsing import duration
from llmviewer.core.workload import Request
from llmviewer.hardware.hypothetical import figure_name
from llmviewer.planning.advise import advise
from llmviewer.planning.elasticity import elasticity
from llmviewer.planning.require import Required, require
from llmviewer.planning.why import why
from llmviewer.reports.plots import PlotData, PlotKind
from llmviewer.result.crossover import ANSWER_METRICS, crossover, over_figure
from llmviewer.result.result import Result
from llmviewer.result.sweep import Grid, parse_values
from llmviewer.serving.schedule import check_passes
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.calibrate.readers.run import Stated


def table(path: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Rows of a CSV or Parquet file.  Raises UserError if one of `columns` is missing."""
    from llmviewer.calibrate import table_file

    rows = table_file.read(Path(path))
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise UserError(f"'{printable(path)}' has no column {', '.join(missing)}")
    return rows


def is_benchmark(path: str) -> bool:
    """Whether a file is one of a benchmark program, which options of a run complete."""
    from llmviewer.calibrate.readers import files

    if path and not Path(path).exists():
        raise UserError(f"no file {quoted(path)}")
    return files.is_benchmark(Path(path))


def parity_rows(path: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """Measured rows with their predictions: a table that has them, or a file of a benchmark program.

    options: values of the command for what a benchmark does not state.
    """
    from llmviewer.reports.plots import parity

    if not path:
        raise UserError(
            "this plot needs a benchmark's file, or one written by `llmviewer calibrate validate FILE -o FILE`"
        )
    rows = _predicted(path, options) if is_benchmark(path) else table(path)
    if not parity.is_table(rows.columns):
        raise UserError(f"'{printable(path)}' is not a file written by `llmviewer calibrate validate TABLE -o FILE`")
    if parity.frame(rows).empty:
        raise UserError(f"'{printable(path)}' has no row with a prediction")
    return rows


def _predicted(path: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of a benchmark's file with predictions."""
    from llmviewer.calibrate import judge

    own = profiles.load(Path(options["profile"])) if options.get("profile") else None
    try:
        return judge.predict_tables([Path(path)], "", own, _stated(options))[0]
    except UserError as error:
        hint = "" if "--model" not in error.marked else " to `llmviewer calibrate validate FILE -o rows.csv`; plot that"
        raise UserError(f"{error.marked}{hint}") from error


def _stated(options: Mapping[str, Any]) -> Stated:
    """The options of the command that describe a benchmark; one that has its default states nothing."""
    from llmviewer.calibrate.readers.run import Stated
    from llmviewer.techniques.options import OPTIONS

    given: dict[str, Any] = {}
    for declared in fields(Stated):
        default = getattr(OPTIONS.get(declared.name), "default", None)
        value = options.get(declared.name)
        if value not in ("", None, default):
            if isinstance(declared.default, int):
                value = arguments.whole_number(declared.name, arguments.parse_number(value))
            given[declared.name] = value
    return Stated(**given)


def ledger_rows(path: str) -> pd.DataFrame:
    """Rows of the ledger, from a file or scored now."""
    import pandas as pd

    from llmviewer.reports.plots import ledger as picture

    if path:
        rows = table(path, ("source", "metric", "published", "predicted", "low80", "high80"))
    else:
        if not data.folder("calibrate/ledger").is_dir():
            raise UserError(
                "the ledger is not installed; give a file written by `llmviewer calibrate ledger --format csv`"
            )
        from llmviewer.calibrate import ledger, ledger_score

        rows = pd.DataFrame(ledger_score.document(ledger_score.score(ledger.load()))["rows"])
    if picture.frame(rows).empty:
        raise UserError("no row has a prediction")
    return rows


#: Maximum points per curve; more would not be visible.
MAX_PLOT_POINTS = 20_000
DEFAULT_SIZES = {"batch_size": "1", "input_len": "1024", "output_len": "128"}
#: Default bandwidths of hypothetical chips as multiples of the real one.
BANDWIDTH_FACTORS = 2.0 ** np.arange(-2.0, 3.01, 0.25)


@frozen
class PlotRequest:
    """Arguments of the command.

    sizes: lists by name, "" if not given.  load: options of a simulated load.  target: a time, or "".  vary: figures of
    a frontier, or "".  over: a figure of the chips as an axis of a crossover, or "".
    """

    kind: PlotKind
    model: str
    hardware: str
    sizes: Mapping[str, str]
    metric: str
    options: dict[str, Any]
    load: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    vary: str = ""
    over: str = ""


@frozen
class LoadedData:
    """The data to draw and warnings for the reader."""

    data: Any
    warnings: tuple[str, ...] = ()


def load_data(request: PlotRequest) -> LoadedData:
    """The data that the requested kind of plot draws."""
    benchmark = request.kind.data is PlotData.TABLE and is_benchmark(request.model)
    if request.kind.data in (PlotData.TABLE, PlotData.LEDGER) and not benchmark:
        _check_only_a_file(request)
    return LOADERS[request.kind.data](request)


def picture_options(request: PlotRequest, measured: str, *, all_roofs: bool = False) -> dict[str, Any]:
    """Keyword arguments of the plot's `picture` function.  measured: path of a table, or "", for a roofline."""
    kind = request.kind
    options: dict[str, Any] = {}
    if request.metric and request.metric not in kind.metrics:
        raise unknown("metric", request.metric, kind.metrics) if kind.metrics else _not_taken("metric", request.metric)
    if kind.metrics and kind.data is PlotData.POINT:
        options["metric"] = request.metric or kind.metrics[0]
    if kind.data is PlotData.MAP:
        metric = request.metric or kind.metrics[0]
        length = request.sizes["output_len"] or DEFAULT_SIZES["output_len"]
        output = f", output {length}" if metric in ANSWER_METRICS else ""
        options["title"] = f"{request.model} on {request.hardware}{output}"
    _check_figures(request)
    if kind.data is PlotData.FIGURE:
        options["over"] = figure_name(request.over.partition("=")[0].strip())
    if request.target and kind.data is not PlotData.REQUIRED:
        if kind.module != "bandwidth":
            raise _not_taken("target", request.target)
        options["target_s"] = _target_s(request.target)
    if kind.module == "roofline":
        options["all_roofs"] = all_roofs
        return options | ({"measured": table(measured, ("stage", "name", "time_s"))} if measured else {})
    if measured or all_roofs:
        raise _not_taken("measured", measured) if measured else _not_taken("all-roofs", "on")
    return options


def _check_figures(request: PlotRequest) -> None:
    """Raise UserError for figures of the chip that the plot does not take, and without the one that it needs."""
    kind = request.kind
    if request.vary and kind.data is not PlotData.REQUIRED:
        raise _not_taken("vary", request.vary)
    if request.over and kind.data not in (PlotData.MAP, PlotData.FIGURE):
        raise _not_taken("over", request.over)
    if kind.data is PlotData.FIGURE and not request.over:
        raise UserError("this plot needs --over, such as --over peak.bf16=250TFLOP/s:4PFLOP/s:*2")


def _target_s(text: str) -> float:
    value = duration("target", text)
    if 0.0 < value < np.inf:
        return value
    raise UserError(f"target is {quoted(text)}; allowed: a time above 0, such as 20ms")


def _not_taken(name: str, text: str) -> UserError:
    return UserError(f"{name} is {quoted(text)}; this plot does not take it")


def _check_only_a_file(request: PlotRequest) -> None:
    """Raise UserError for an option of a run, which a plot of a table does not use."""
    given: dict[str, Any] = {"hardware": request.hardware, **request.sizes}
    for name, value in request.options.items():
        given[name] = value[0] if isinstance(value, tuple) else value
    for name, value in given.items():
        if value:
            raise _not_taken(name, str(value))


def _configurations(request: PlotRequest) -> dict[str, dict[str, Any]]:
    """Options of every distinct configuration, by name."""
    for name, text in (("a model", request.model), ("--hardware", request.hardware)):
        if not text:
            raise UserError(f"this plot needs {name}")
    options = {**request.kind.lists, **request.options}
    configurations = opt.unique_by_name(opt.combinations(options, model=request.model, hardware=request.hardware))
    fewest, most = request.kind.fewest, request.kind.most
    if not fewest <= len(configurations) <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        count = f"{len(configurations)} configuration{'s' * (len(configurations) > 1)}"
        raise UserError(f"{count}; this plot takes {allowed}: give comma-separated lists")
    return configurations


def _results(request: PlotRequest) -> LoadedData:
    """Results of every configuration at all points."""
    grid = _grid(request.kind, request.sizes)
    results: dict[str, Any] = {}
    for name, options in _configurations(request).items():
        if "bandwidth" in request.kind.axes:
            results[name] = _over_bandwidths(options, request.sizes["bandwidth"], grid)
            continue
        configuration = api.configuration(**options)
        check_passes(grid.largest(), configuration.token_budget)
        results[name] = [configuration.answer(points) for points in grid.chunks(max_points=configuration.most_points)]
    warnings = tuple(text for chunks in results.values() for result in chunks for text in result.warnings)
    single = request.kind.data is PlotData.POINT
    return LoadedData(data={name: c[0] for name, c in results.items()} if single else results, warnings=warnings)


def _grid(kind: PlotKind, sizes: Mapping[str, str]) -> Grid:
    """Points of every configuration; only one size may be a list, and it must be an axis of the plot."""
    texts = {name: sizes[name] or text for name, text in DEFAULT_SIZES.items()}
    columns = {name: np.unique(parse_values(name, text)) for name, text in texts.items()}
    if sizes["bandwidth"] and "bandwidth" not in kind.axes:
        raise _not_taken("bandwidth", sizes["bandwidth"])
    lists = [name for name, column in columns.items() if len(column) > 1]
    for name in lists:
        if name not in kind.axes or len(lists) > 1:
            allowed = f"; only one of {', '.join(kind.axes)} may be a list" if kind.axes else ""
            raise UserError(f"{name} is {quoted(texts[name])}; this plot takes one value{allowed}")
    first = next(iter(kind.axes), "")
    if first in columns and not lists and not sizes[first]:
        columns[first] = parse_values(first, kind.axes[first])
    grid = Grid(batch_sizes=columns["batch_size"], input_lens=columns["input_len"], output_lens=columns["output_len"])
    if len(grid) > MAX_PLOT_POINTS:
        raise UserError(f"{len(grid):,} points; a plot draws at most {MAX_PLOT_POINTS:,}")
    return grid


def _over_bandwidths(options: dict[str, Any], bandwidths: str, grid: Grid) -> list[Result]:
    """Results of hypothetical chips that differ only in memory bandwidth.  bandwidths: list [GB/s], or ""."""
    settled = api.configuration(**options).settled()
    chip = settled.chip
    real = float(np.max(chip.bandwidth_bytes_per_s))
    rates: Array = parse_values("bandwidth", bandwidths, parse_number) * 1e9 if bandwidths else real * BANDWIDTH_FACTORS
    rates = np.unique(np.append(rates, real))
    if len(rates) > MAX_PLOT_POINTS:
        raise UserError(f"{len(rates):,} points; a plot draws at most {MAX_PLOT_POINTS:,}")
    configuration = settled.on_chip(replace(chip, bandwidth_bytes_per_s=rates))
    if configuration.most_points < len(rates):
        raise UserError("bandwidth: an offloading policy that depends on the chip's figures cannot be drawn over it")
    (point,) = grid.chunks()
    return [configuration.answer(Request(**{name: getattr(point, name) for name in DEFAULT_SIZES}))]


def _over_figure(request: PlotRequest) -> LoadedData:
    """Results of every configuration on chips that differ in one figure."""
    configurations = {name: api.configuration(**options) for name, options in _configurations(request).items()}
    point = Request(**_sizes(request))
    axis = figure_axis(request.over, configurations)
    found = {name: [one.answer(point) for one in axis.configurations[name]] for name in configurations}
    return LoadedData(data=found, warnings=tuple(text for all_ in found.values() for text in all_[0].warnings))


def _crossover_map(request: PlotRequest) -> LoadedData:
    """The fastest configuration over batch size and context length."""
    configurations = {name: api.configuration(**options) for name, options in _configurations(request).items()}
    sizes = {**request.kind.axes, **({"input_len": CONTEXT} if request.over else {})}
    axes = {name: parse_values(name, request.sizes[name] or text) for name, text in sizes.items()}
    output = parse_values("output_len", request.sizes["output_len"] or DEFAULT_SIZES["output_len"])
    if len(output) > 1:
        raise UserError(f"output_len is {quoted(request.sizes['output_len'])}; this plot takes one value")
    points: dict[str, Any] = {
        "batch_sizes": np.unique(axes["batch_size"]),
        "contexts": np.unique(axes["input_len"]),
        "metric": request.metric or request.kind.metrics[0],
        "output_len": int(output[0]),
    }
    if request.over:
        return LoadedData(data=over_figure(figure_axis(request.over, configurations), **points))
    return LoadedData(data=crossover(configurations, **points))


def _parity(request: PlotRequest) -> LoadedData:
    stated = {**request.options, **request.sizes, "hardware": request.hardware}
    return LoadedData(data=parity_rows(request.model, stated))


def _ledger(request: PlotRequest) -> LoadedData:
    return LoadedData(data=ledger_rows(request.model))


def _simulation(request: PlotRequest) -> LoadedData:
    """The simulation of a load on one configuration."""
    (options,) = _configurations(replace(request, kind=replace(request.kind, most=1))).values()
    made = simulated(options, request.load, request.sizes)
    return LoadedData(data=made, warnings=(*made.notes, *loads.unused(request.kind, request.load)))


def _pair(request: PlotRequest) -> LoadedData:
    """The difference between two configurations, split over factors."""
    first, second = ({**one, **_sizes(request)} for one in _configurations(request).values())
    found = why(first, second, metric=request.metric or request.kind.metrics[0])
    return LoadedData(data=found, warnings=tuple(found.warnings()))


def _advice(request: PlotRequest) -> LoadedData:
    """The changes of one configuration that were tried, and their combination."""
    (options,) = _configurations(request).values()
    words: dict[str, Any] = {**options, **_sizes(request), "metric": request.metric or request.kind.metrics[0]}
    found = advise(**words)
    return LoadedData(data=found, warnings=found.result.warnings)


def _elasticities(request: PlotRequest) -> LoadedData:
    """The elasticities of one configuration's time."""
    (options,) = _configurations(request).values()
    words: dict[str, Any] = {**options, **_sizes(request), "metric": request.metric or request.kind.metrics[0]}
    return LoadedData(data=elasticity(**words))


def _required(request: PlotRequest) -> LoadedData:
    """The figures that a target takes of one configuration's chip."""
    for name in ("vary", "target"):
        if not getattr(request, name):
            raise UserError(f"this plot needs --{name}, such as --vary bandwidth,peak.bf16 --target 100ms")
    (options,) = _configurations(request).values()
    metric = (request.metric or request.kind.metrics[0]).removesuffix("_s")
    words: dict[str, Any] = {**options, **_sizes(request), metric: _target_s(request.target)}
    found = require(**words, vary=request.vary)
    if not isinstance(found, Required):
        raise UserError(
            f"--vary is {quoted(request.vary)}; a frontier is of figures of the chip, such as bandwidth,peak.bf16"
        )
    return LoadedData(data=found, warnings=found.warnings)


def _sizes(request: PlotRequest) -> dict[str, int]:
    """The sizes of a single point.  Raises UserError for a list."""
    _grid(request.kind, request.sizes)
    return {name: int(parse_values(name, request.sizes[name] or text)[0]) for name, text in DEFAULT_SIZES.items()}


LOADERS: dict[PlotData, Callable[[PlotRequest], LoadedData]] = {
    PlotData.POINT: _results,
    PlotData.PAIR: _pair,
    PlotData.ADVICE: _advice,
    PlotData.ELASTICITY: _elasticities,
    PlotData.REQUIRED: _required,
    PlotData.CURVE: _results,
    PlotData.FIGURE: _over_figure,
    PlotData.MAP: _crossover_map,
    PlotData.TABLE: _parity,
    PlotData.LEDGER: _ledger,
    PlotData.LOAD: _simulation,
}
