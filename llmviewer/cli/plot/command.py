"""`llmviewer plot`: a picture of one kind, of every configuration that the lists ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates
from llmviewer.cli import options as opt
from llmviewer.cli.output import atomic_file, check_not_an_input, print_warnings, check_writable
from llmviewer.core.errors import UserError, quoted, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from llmviewer.reports.plots import PlotKind

#: Endings of files -> formats of matplotlib.
FILE_FORMATS = ("png", "svg", "pdf")


@opt.with_run_options
def command(
    kind: Annotated[
        str,
        typer.Argument(autocompletion=candidates.plots, help="What to draw: `llmviewer plot list` names the kinds."),
    ],
    model: Annotated[
        str,
        typer.Argument(
            autocompletion=candidates.models, help="Models, a comma list; of parity and ledger a table of rows."
        ),
    ] = "",
    hardware: opt.Chips = "",
    batch_size: Annotated[str, typer.Option(help="Batch sizes: lists and ranges, where the kind draws them.")] = "",
    input_len: Annotated[str, typer.Option(help="Prompt lengths likewise.")] = "",
    output_len: Annotated[str, typer.Option(help="Output lengths likewise.")] = "",
    bandwidth: Annotated[str, typer.Option(help="Of `plot bandwidth`: GB/s, lists and ranges.")] = "",
    metric: Annotated[str, typer.Option(help="Of crossover and waterfall: tpot_s, e2e_s, ttft_s ...")] = "",
    measured: Annotated[str, typer.Option(help="Of roofline: a CSV of stage, name, time_s of a layer.")] = "",
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    size: Annotated[str, typer.Option(help="half (a column), page, slide.")] = "page",
    output: Annotated[str, typer.Option("-o", "--output", help="A .png, .svg or .pdf; else named by the kind.")] = "",
    **options: Any,
) -> int:
    """Draws roofs, curves, memory and winners into a PNG, SVG or PDF, of the lists that compare and sweep take."""
    from llmviewer.reports.plots import KINDS

    if kind == "list":
        return _listed(KINDS)
    if kind not in KINDS:
        raise unknown("kind of plot", kind, ("list", *KINDS))
    from llmviewer.cli.plot import checks
    from llmviewer.cli.plot import given as inputs

    path, known = output or f"{kind}.png", KINDS[kind]
    _writable(path, (*model.split(","), *hardware.split(","), measured))
    style = _style(theme, size)
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len, "bandwidth": bandwidth}
    asked = inputs.PlotRequest(kind=known, model=model, hardware=hardware, sizes=sizes, metric=metric, options=options)
    extra = inputs.picture_options(asked, measured)
    given = inputs.load_data(asked)
    print_warnings((*given.warnings, *checks.check_drawable(given.of, extra)))
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a `$` in a name is a `$`
        save(_module(known).picture(given.of, style, **extra), path)
    return 0


def _listed(kinds: Mapping[str, PlotKind]) -> int:
    from llmviewer.cli.output import write

    write("\n".join(f"{name:12} {kind.summary}" for name, kind in kinds.items()), None)
    return 0


def _module(kind: PlotKind) -> Any:
    from importlib import import_module

    return import_module(f"llmviewer.reports.plots.{kind.module}")


def _style(theme: str, size: str) -> Any:
    from llmviewer.reports.plots.style import SIZES, THEMES, Style

    for what, word, known in (("theme", theme, THEMES), ("size", size, SIZES)):
        if word not in known:
            raise unknown(what, word, known)
    return Style(theme=THEMES[theme], size=SIZES[size])


def _writable(path: str, inputs: tuple[str, ...]) -> None:
    if Path(path).suffix.removeprefix(".").lower() not in FILE_FORMATS:
        raise UserError(f"output is {quoted(path)}; allowed: a name that ends in .{', .'.join(FILE_FORMATS)}")
    check_not_an_input(path, filter(None, inputs))
    check_writable(path)


def save(figure: Figure, path: str) -> None:
    """Write the picture whole or not at all; its format by the ending."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".").lower())
