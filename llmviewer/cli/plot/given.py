"""What `llmviewer plot` hands to a picture: answers of configurations, a map of winners, a table of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli.plot import tables
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.workload import Request
from llmviewer.hardware import specs as chips
from llmviewer.reports.plots import PlotData, PlotKind
from llmviewer.result.crossover import crossover
from llmviewer.result.result import Result
from llmviewer.result.sweep import Grid, parse_values
from llmviewer.serving.schedule import check_passes

#: Points of one series; more are drawn as one line anyway.
MAX_PLOT_POINTS = 20_000
DEFAULT_SIZES = {"batch_size": "1", "input_len": "1024", "output_len": "128"}
#: Bandwidths of hypothetical chips, as multiples of the real one's, unless asked otherwise.
BANDWIDTH_FACTORS = 2.0 ** np.arange(-2.0, 3.01, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """The words of the command.  sizes: lists by name, "" where none is given."""

    kind: PlotKind
    model: str
    hardware: str
    sizes: Mapping[str, str]
    metric: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedData:
    """What the picture is made `of`, and what a reader should know."""

    of: Any
    warnings: tuple[str, ...] = ()


def load_data(asked: PlotRequest) -> LoadedData:
    """What the picture asks for."""
    return LOADERS[asked.kind.given](asked)


def picture_options(asked: PlotRequest, measured: str) -> dict[str, Any]:
    """What only some pictures take.  measured: path of a table."""
    known = asked.kind
    found: dict[str, Any] = {}
    if asked.metric and asked.metric not in known.metrics:
        raise unknown("metric", asked.metric, known.metrics) if known.metrics else _not_taken("metric", asked.metric)
    if known.metrics and known.given is PlotData.POINT:
        found["metric"] = asked.metric or known.metrics[0]
    if known.given is PlotData.MAP:
        found["title"] = f"{asked.model} on {asked.hardware}"
    if measured:
        if known.module != "roofline":
            raise _not_taken("measured", measured)
        found["measured"] = tables.table(measured, ("stage", "name", "time_s"))
    return found


def _not_taken(name: str, text: str) -> UserError:
    return UserError(f"{name} is {quoted(text)}; this picture takes none")


def _configurations(asked: PlotRequest) -> dict[str, dict[str, Any]]:
    """Options of every configuration by name, none twice."""
    for name, text in (("a model", asked.model), ("--hardware", asked.hardware)):
        if not text:
            raise UserError(f"this picture needs {name}")
    options = dict(asked.options)
    for name, listed in asked.kind.lists.items():
        if options[name] in ("", "none"):
            options[name] = listed
    chosen = opt.unique_by_name(opt.combinations(options, model=asked.model, hardware=asked.hardware))
    fewest, most = asked.kind.fewest, asked.kind.most
    if not fewest <= len(chosen) <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise UserError(
            f"{len(chosen)} configuration{'s' * (len(chosen) > 1)}; this picture shows {allowed}: give comma lists"
        )
    return chosen


def _results(asked: PlotRequest) -> LoadedData:
    """Every configuration at all points."""
    grid = _grid(asked.kind, asked.sizes)
    found: dict[str, Any] = {}
    for name, options in _configurations(asked).items():
        if "bandwidth" in asked.kind.axes:
            found[name] = _over_bandwidths(options, asked.sizes["bandwidth"], grid)
            continue
        configuration = api.configuration(**options)
        check_passes(grid.largest(), configuration.token_budget)
        found[name] = [configuration.answer(request) for request in grid.chunks(max_points=configuration.most_points)]
    every = [one for results in found.values() for one in results]
    of = {name: results[0] for name, results in found.items()} if asked.kind.given is PlotData.POINT else found
    return LoadedData(of=of, warnings=tuple(text for one in every for text in one.warnings))


def _grid(kind: PlotKind, sizes: Mapping[str, str]) -> Grid:
    """The points of every configuration; lists only along the axes of the kind, and one at a time."""
    asked = {name: sizes[name] or text for name, text in DEFAULT_SIZES.items()}
    columns = {name: np.unique(parse_values(name, text)) for name, text in asked.items()}
    if sizes["bandwidth"] and "bandwidth" not in kind.axes:
        raise _not_taken("bandwidth", sizes["bandwidth"])
    lists = [name for name, column in columns.items() if len(column) > 1]
    for name in lists:
        if name not in kind.axes or len(lists) > 1:
            along = f"; it draws one list of {' or '.join(kind.axes)}" if kind.axes else ""
            raise UserError(f"{name} is {quoted(asked[name])}; this picture takes one{along}")
    first = next(iter(kind.axes), "")
    if first in columns and not lists and not sizes[first]:
        columns[first] = parse_values(first, kind.axes[first])
    grid = Grid(batch_sizes=columns["batch_size"], input_lens=columns["input_len"], output_lens=columns["output_len"])
    if len(grid) > MAX_PLOT_POINTS:
        raise UserError(f"{len(grid):,} points; a picture draws at most {MAX_PLOT_POINTS:,}")
    return grid


def _over_bandwidths(options: dict[str, Any], asked: str, grid: Grid) -> list[Result]:
    """The answers of chips that are alike but for their memory."""
    chip = chips.load(options["hardware"])
    real = float(np.max(chip.bandwidth_bytes_per_s))
    rates: Array = parse_values("bandwidth", asked) * 1e9 if asked else real * BANDWIDTH_FACTORS
    found = np.unique(np.append(rates, real))
    if len(found) > MAX_PLOT_POINTS:
        raise UserError(f"{len(found):,} points; a picture draws at most {MAX_PLOT_POINTS:,}")
    configuration = api.configuration(**{**options, "hardware": replace(chip, bandwidth_bytes_per_s=found)})
    if configuration.most_points < len(found):
        raise UserError("bandwidth: what is placed by the chip's figures is not drawn over them")
    (point,) = grid.chunks()
    return [configuration.answer(Request(**{name: getattr(point, name) for name in DEFAULT_SIZES}))]


def _crossover_map(asked: PlotRequest) -> LoadedData:
    """Winners over batch and context."""
    configurations = {name: api.configuration(**options) for name, options in _configurations(asked).items()}
    axes = {name: parse_values(name, asked.sizes[name] or text) for name, text in asked.kind.axes.items()}
    output = parse_values("output_len", asked.sizes["output_len"] or DEFAULT_SIZES["output_len"])
    if len(output) > 1:
        raise UserError(f"output_len is {quoted(asked.sizes['output_len'])}; this picture takes one")
    found = crossover(
        configurations,
        batch_sizes=np.unique(axes["batch_size"]),
        contexts=np.unique(axes["input_len"]),
        metric=asked.metric or asked.kind.metrics[0],
        output_len=int(output[0]),
    )
    return LoadedData(of=found)


def _parity(asked: PlotRequest) -> LoadedData:
    return LoadedData(of=tables.parity_rows(asked.model))


def _ledger(asked: PlotRequest) -> LoadedData:
    return LoadedData(of=tables.ledger_rows(asked.model))


LOADERS: dict[PlotData, Callable[[PlotRequest], LoadedData]] = {
    PlotData.POINT: _results,
    PlotData.CURVE: _results,
    PlotData.MAP: _crossover_map,
    PlotData.TABLE: _parity,
    PlotData.LEDGER: _ledger,
}
