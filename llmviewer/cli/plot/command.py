"""`llmviewer plot`: draws one kind of plot for every configuration of the lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, process
from llmviewer.cli import options as opt
from llmviewer.cli.load_options import with_load_options
from llmviewer.cli.views import atomic_file, check_not_an_input, check_writable, print_warnings
from llmviewer.core.errors import UserError, quoted, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from llmviewer.reports.plots import PlotKind

#: File name suffixes, which are also the format names of matplotlib.
FILE_FORMATS = ("png", "svg", "pdf")


@opt.with_run_options
@with_load_options
def command(
    kind: Annotated[
        str,
        typer.Argument(autocompletion=candidates.plots, help="Kind of plot; `llmviewer plot list` lists them."),
    ],
    model: Annotated[
        str,
        typer.Argument(autocompletion=candidates.models, help="Models, comma-separated; for parity and ledger a file."),
    ] = "",
    hardware: opt.Chips = "",
    batch_size: Annotated[
        str, opt.listed("batch_size", "Batch sizes: a list or ranges, if the plot has this axis.")
    ] = "",
    input_len: Annotated[
        str, opt.listed("input_len", "Prompt lengths: a list or ranges, if the plot has this axis.")
    ] = "",
    output_len: Annotated[
        str, opt.listed("output_len", "Output lengths: a list or ranges, if the plot has this axis.")
    ] = "",
    bandwidth: Annotated[str, typer.Option(help="For bandwidth: GB/s, a list or ranges.")] = "",
    target: Annotated[str, typer.Option(help="For bandwidth, frontier: time to reach: 20ms.")] = "",
    vary: Annotated[str, typer.Option(help="For frontier: figures of the chip, such as bandwidth,peak.bf16.")] = "",
    metric: Annotated[str, typer.Option(help="For crossover and waterfall: tpot_s, e2e_s, ttft_s ...")] = "",
    over: Annotated[str, typer.Option(help="For crossover, figure: of the chips, bandwidth=1TB/s:16TB/s:*2.")] = "",
    measured: Annotated[
        str, typer.Option(help="For roofline: a CSV with columns stage, name, time_s (of one layer).")
    ] = "",
    all_roofs: Annotated[
        bool, typer.Option("--all-roofs", help="For roofline: also units that no operator uses.")
    ] = False,
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    style: Annotated[str, typer.Option(help="paper (one column), page, slide: width and size of text.")] = "page",
    output: Annotated[
        str, typer.Option("-o", "--output", help="Output file: .png, .svg or .pdf; default: the kind's name and .png.")
    ] = "",
    **options: Any,
) -> int:
    """Draws a plot as PNG, SVG or PDF; takes the lists of compare and sweep."""
    from llmviewer.reports.plots import KINDS

    if kind == "list":
        return _print_kinds(KINDS)
    if kind not in KINDS:
        raise unknown("kind of plot", kind, ("list", *KINDS))
    from llmviewer.cli.plot import checks, loads
    from llmviewer.cli.plot import given as loading
    from llmviewer.reports.plots import plot

    path, plot_kind = output or f"{kind}.png", KINDS[kind]
    check_path(path, (*model.split(","), *hardware.split(","), measured))
    process.silence_matplotlib()
    look = plot.style_of(theme, style)
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len, "bandwidth": bandwidth}
    load, options = loads.separated(plot_kind, options)
    request = loading.PlotRequest(
        kind=plot_kind, model=model, hardware=hardware, sizes=sizes, metric=metric, options=options, load=load,
        target=target, vary=vary, over=over,
    )  # fmt: skip
    picture_options = loading.picture_options(request, measured, all_roofs=all_roofs)
    left_out: tuple[str, ...] = ()
    if measured:
        picture_options["measured"], left_out = checks.timed_rows(picture_options["measured"])
    loaded = loading.load_data(request)
    print_warnings((*loaded.warnings, *left_out, *checks.check_drawable(loaded.data, picture_options)))
    save(plot.drawn(plot_kind, loaded.data, look, picture_options), path)
    return 0


def _print_kinds(kinds: Mapping[str, PlotKind]) -> int:
    from llmviewer.cli.views import write

    write("\n".join(f"{name:13} {kind.summary}" for name, kind in kinds.items()), None)
    return 0


def check_path(path: str, inputs: tuple[str, ...]) -> None:
    """Raise UserError for the path of a picture with an unknown suffix, that cannot be written, or that is an input."""
    if Path(path).suffix.removeprefix(".").lower() not in FILE_FORMATS:
        raise UserError(f"output is {quoted(path)}; allowed: a name that ends in .{', .'.join(FILE_FORMATS)}")
    check_not_an_input(path, filter(None, inputs))
    check_writable(path)


def save(figure: Figure, path: str) -> None:
    """Write the plot atomically; the suffix sets its format."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.removeprefix(".").lower())
