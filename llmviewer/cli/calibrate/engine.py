"""`llmviewer calibrate engine`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.calibrate.stated import with_stated
from llmviewer.core import arguments

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

Results = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help=f"Results of one server ({arguments.BENCHMARKS}), and profiles of it ({arguments.RECORDERS}).",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine", "--base-engine", help="Preset to correct, where no result states it: vllm, vllm==0.19, sglang ..."
    ),
]
File = Annotated[str, typer.Option("-o", "--output", help="Engine file to write; --engine takes it.")]


@with_stated
def command(
    results: Results,
    output: File,
    engine: Engine = "",
    format: opt.PrintedFormat = "table",  # noqa: A002
    **words: Any,
) -> int:
    """Correct an engine's constants by what your server measured, and report errors on held-out runs.

    A constant that the results do not determine stays the preset's.  Options state what the files do not.  Two runs
    help already; the file holds for the measured models, formats and layouts, and intervals widen beyond.
    """
    views.check_output(format, output, tuple(map(str, results)))
    from llmviewer.calibrate import own_engine
    from llmviewer.calibrate.readers.run import Stated

    made = own_engine.calibrate(results, Stated(engine=engine, **words), output)
    with views.atomic_file(output) as temporary:
        temporary.write_text(made.text, encoding="utf-8")

    def page() -> Page:
        from llmviewer.reports import own_engine_page

        return own_engine_page.page(made.document)

    document = made.document
    views.show(views.Views(page=page, document=lambda: document, rows=lambda: document["metrics"]), format, None)
    return 0
