"""`llmviewer calibrate fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.core.errors import UserError, printable
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    from llmviewer.calibrate.profiling import FitInputs
    from llmviewer.reports.page import Page

Samples = Annotated[
    list[Path], typer.Argument(metavar="SAMPLES...", help="Directories of `calibrate run`, or measured tables.")
]
Profile = Annotated[str, typer.Option("-o", "--output", help="Profile to write.")]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware",
        autocompletion=candidates.chips,
        help="Chip name or YAML; default: the only device of the rows.",
    ),
]
Extend = Annotated[
    str, typer.Option("--extend", metavar="PROFILE", help="Profile of the chip whose fits of other kernels are kept.")
]
#: Seconds before the progress bar appears.
PATIENCE_S = 1.0


def command(
    samples: Samples,
    output: Profile,
    hardware: Hardware = "",
    title: Annotated[str, typer.Option("--title", help="Title of the profile.")] = "",
    origin: Annotated[str, typer.Option("--origin", help="Source of the rows, for the provenance.")] = "",
    extend: Extend = "",
    force: Annotated[bool, typer.Option("--force", help="Store fits with absurd held-out errors too.")] = False,
    format: opt.PrintedFormat = "table",  # noqa: A002
) -> int:
    """Fit kernel constants to measured rows and report errors on held-out rows.

    A fit whose mean error is above 100 %, that of predicting zero, is not stored unless forced; without any other, no
    profile is written.  For a device without a chip spec, one with measured rates is written next to the profile.
    """
    views.check_output(format, output, (*map(str, samples), hardware, extend))
    from llmviewer.calibrate.profiling import document, fit_profile, prepare

    extended = profiles.load(Path(extend)) if extend else None
    inputs = prepare(samples, hardware)
    chip_path = chip_path_of(inputs, output)
    with progress() as on_progress:
        found = fit_profile(inputs, title, origin, on_progress, force=force, extend=extended)
    put(inputs.chip_text, chip_path)  # first, so that no profile exists without its chip
    put(found.text, output)
    _show(document(inputs, found, output, chip_path), format, inputs.chip.name)
    return 0


def chip_path_of(inputs: FitInputs, output: str) -> str:
    """Path of the generated chip spec, next to the profile; empty if the chip has a spec."""
    if not inputs.chip_text:
        return ""
    from llmviewer.calibrate.measured_chip import may_replace

    profile = Path(output).expanduser()
    path = profile.parent / f"{inputs.chip.name}.yaml"
    if path == profile:
        raise UserError(f"'{printable(path)}' is reserved for the chip spec; choose another name for the profile")
    if not may_replace(path):
        raise UserError(f"'{printable(path)}' would be overwritten by the chip spec, and no fit wrote it; move it")
    return str(path)


def put(text: str, path: str) -> None:
    """Write a file, if there is one to write."""
    if not path:
        return
    with views.atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _show(document: dict[str, object], format: str, title: str) -> None:  # noqa: A002
    def page() -> Page:
        from llmviewer.reports import fit_page

        return fit_page.page(document, title)

    rows = document["fits"]
    assert isinstance(rows, list)
    views.show(views.Views(page=page, document=lambda: document, rows=lambda: rows), format, None)


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """Progress bar on stderr, if it is a terminal, after PATIENCE_S seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
    task, started_at, is_shown = bar.add_task("", total=None), time.monotonic(), False

    def on_progress(done: int, total: int, current: str) -> None:
        nonlocal is_shown
        bar.update(task, completed=done, total=total, description=current)
        if console.is_terminal and time.monotonic() - started_at > PATIENCE_S:
            if not is_shown:
                bar.start()
                is_shown = True
            bar.refresh()

    try:
        yield on_progress
    finally:
        if is_shown:
            bar.stop()
