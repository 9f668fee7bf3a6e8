"""`llmviewer plot`: a picture of one kind, of every configuration that the lists ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli.output import replacing, spare, warn, writable
from llmviewer.crossover import names
from llmviewer.errors import UserError, quoted, unknown
from llmviewer.result import Result
from llmviewer.sweep import Grid, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from reports.plots import Kind

#: Endings of files -> formats of matplotlib.
FORMATS = ("png", "svg", "pdf")
#: Series that one picture tells apart.
MOST = 14
#: Points of one series; more are drawn as one line anyway.
MOST_POINTS = 20_000


@opt.running
def command(
    kind: Annotated[str, typer.Argument(help="What to draw: `llmviewer plot list` names the kinds.")],
    model: Annotated[str, typer.Argument(help="Models, a comma list: names or paths.")] = "",
    hardware: Annotated[str, typer.Option(help="Chips, a comma list: names or paths.")] = "",
    batch_size: Annotated[str, typer.Option(help="Batch sizes: lists and ranges, where the kind draws them.")] = "",
    input_len: Annotated[str, typer.Option(help="Prompt lengths likewise.")] = "",
    output_len: Annotated[str, typer.Option(help="Output lengths likewise.")] = "",
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    size: Annotated[str, typer.Option(help="half (a column), page, slide.")] = "page",
    output: Annotated[str, typer.Option("-o", "--output", help="A .png, .svg or .pdf; else named by the kind.")] = "",
    **options: Any,
) -> int:
    """Draws roofs, curves, memory and winners into a PNG, SVG or PDF, of the lists that compare and sweep take."""
    from reports.plots import KINDS

    if kind == "list":
        return _listed(KINDS)
    if kind not in KINDS:
        raise unknown("kind of plot", kind, ("list", *KINDS))
    path = output or f"{kind}.png"
    _writable(path, (*model.split(","), *hardware.split(",")))
    style = _style(theme, size)
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    results = _results(KINDS[kind], sizes, opt.combinations(options, model=model, hardware=hardware))
    warn(text for result in results.values() for text in result.warnings)
    save(_module(KINDS[kind]).picture(results, style), path)
    return 0


def _listed(kinds: Mapping[str, Kind]) -> int:
    from llmviewer.cli.output import write

    write("\n".join(f"{name:12} {kind.summary}" for name, kind in kinds.items()), None)
    return 0


def _module(kind: Kind) -> Any:
    from importlib import import_module

    return import_module(f"reports.plots.{kind.module}")


def _style(theme: str, size: str) -> Any:
    from reports.plots.style import SIZES, THEMES, Style

    for what, word, known in (("theme", theme, THEMES), ("size", size, SIZES)):
        if word not in known:
            raise unknown(what, word, known)
    return Style(theme=THEMES[theme], size=SIZES[size])


def _writable(path: str, inputs: tuple[str, ...]) -> None:
    if Path(path).suffix.removeprefix(".").lower() not in FORMATS:
        raise UserError(f"output is {quoted(path)}; allowed: a name that ends in .{', .'.join(FORMATS)}")
    spare(path, inputs)
    writable(path)


def _results(kind: Kind, sizes: Mapping[str, str], chosen: list[dict[str, Any]]) -> dict[str, Result]:
    """Every configuration with all its points, by name."""
    if not kind.fewest <= len(chosen) <= MOST:
        allowed = f"{kind.fewest} to {MOST}" if kind.fewest > 1 else f"at most {MOST}"
        raise UserError(f"{len(chosen)} configurations; this picture shows {allowed}")
    grid = _grid(kind, sizes)
    titles = names(chosen) if len(chosen) > 1 else [f"{chosen[0]['model']} on {chosen[0]['hardware']}"]
    return {
        title: api.configuration(**options).answer(grid.points(0, len(grid)))
        for title, options in zip(titles, chosen, strict=True)
    }


def _grid(kind: Kind, sizes: Mapping[str, str]) -> Grid:
    """The points of every configuration; a list only where the kind has an axis for it."""
    defaults = {"batch_size": "1", "input_len": "1024", "output_len": "128"}
    asked = defaults | {name: text for name, text in sizes.items() if text}
    if kind.axis and not sizes[kind.axis]:
        asked[kind.axis] = kind.values
    columns = {name: np.unique(values(name, text)) for name, text in asked.items()}
    for name, column in columns.items():
        if len(column) > 1 and name != kind.axis:
            along = f"; it draws a list of {kind.axis}" if kind.axis else ""
            raise UserError(f"{name} is {quoted(asked[name])}; this picture takes one{along}")
    grid = Grid(batch_sizes=columns["batch_size"], input_lens=columns["input_len"], output_lens=columns["output_len"])
    if len(grid) > MOST_POINTS:
        raise UserError(f"{len(grid):,} points; a picture draws at most {MOST_POINTS:,}")
    return grid


def save(figure: Figure, path: str) -> None:
    """Write the picture whole or not at all; its format by the ending."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".").lower())
