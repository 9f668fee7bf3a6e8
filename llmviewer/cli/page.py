"""`llmviewer page`: one HTML file that answers further questions by itself."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Chips,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    output: Annotated[str, typer.Option("-o", "--output", help="Output file, .html.")] = "page.html",
    **options: Any,
) -> int:
    """Writes one HTML file that answers for any batch and lengths, on the chips and formats given, without a server.

    The sizes given are those that it shows first.  Options that take a list in compare take one here, and become menus.
    A combination that is refused is left out, and the page says why.
    """
    from llmviewer.reports.offline import page

    views.check_output("html", output, (model, *hardware.split(",")), known=("html",))
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    text, warnings = page.written(opt.combinations(options, model=model, hardware=hardware), sizes)
    views.print_warnings(warnings)
    views.write(text, output)
    return 0
