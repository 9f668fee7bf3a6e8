"""`llmviewer calibrate fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import candidates, output, views
from llmviewer.cli import options as opt
from llmviewer.cli.extras import calibration
from llmviewer.core.errors import UserError, shown

if TYPE_CHECKING:
    from llmviewer.calibrate.profiling import FitInputs
    from llmviewer.reports.page import Page

Samples = Annotated[
    list[Path], typer.Argument(metavar="SAMPLES...", help="Directories of `calibrate run`, or measured tables.")
]
Profile = Annotated[str, typer.Option("-o", "--output", help="The profile to write.")]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware",
        autocompletion=candidates.chips,
        help="The chip, by name or YAML; else the one device of the rows.",
    ),
]
#: Seconds after which a fit says how far it is.
PATIENCE_S = 1.0


def command(
    samples: Samples,
    output: Profile,
    hardware: Hardware = "",
    title: Annotated[str, typer.Option("--title", help="What the profile is called.")] = "",
    origin: Annotated[str, typer.Option("--origin", help="Where the rows come from, for its provenance.")] = "",
    format: opt.Format = "table",  # noqa: A002
) -> int:
    """Fit the constants of kernels to measured rows; say how far off they are on rows that they did not see.

    A device without a data sheet gets one of measured figures, written beside the profile.
    """
    views.check(format, output, (*map(str, samples), hardware))
    with calibration():
        from llmviewer.calibrate.profiling import document, fit_profile, prepare

        asked = prepare(samples, hardware)
        chip_path = _chip_path(asked, output)
        with _progress() as seen:
            found = fit_profile(asked, title, origin, seen)
    if chip_path:  # first, so that a profile never stands without it
        _put(asked.chip_text, chip_path)
    _put(found.text, output)
    _show(document(asked, found, output, chip_path), format, asked.chip.name)
    return 0


def _chip_path(asked: FitInputs, output: str) -> str:
    """Where the figures of a chip go that nobody described, beside the profile; empty where somebody did."""
    if not asked.chip_text:
        return ""
    from llmviewer.calibrate.measured_chip import may_replace

    profile = Path(output).expanduser()
    path = profile.parent / f"{asked.chip.name}.yaml"
    if path == profile:
        raise UserError(f"'{shown(path)}' is where the chip's own figures go; choose another name for the profile")
    if not may_replace(path):
        raise UserError(f"'{shown(path)}' stands where the chip's figures go, and no fit wrote it; move it")
    return str(path)


def _put(text: str, path: str) -> None:
    with output.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _show(document: dict[str, object], format: str, title: str) -> None:  # noqa: A002
    def page() -> Page:
        from llmviewer.reports import fit_page

        return fit_page.page(document, title)

    rows = document["fits"]
    assert isinstance(rows, list)
    views.show(views.Views(page=page, document=lambda: document, rows=lambda: rows), format, None)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr where that is a terminal, once it takes longer than a moment."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
    task, begun, shown_yet = bar.add_task("", total=None), time.monotonic(), False

    def seen(done: int, total: int, now: str) -> None:
        nonlocal shown_yet
        bar.update(task, completed=done, total=total, description=now)
        if console.is_terminal and time.monotonic() - begun > PATIENCE_S:
            if not shown_yet:
                bar.start()
                shown_yet = True
            bar.refresh()

    try:
        yield seen
    finally:
        if shown_yet:
            bar.stop()
