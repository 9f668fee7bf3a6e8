"""`llmviewer explain`: a number as a tree down to data sheets, fits, fields of the config and assumptions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import UserError
from llmviewer.result.costs import OF_ONE_RUN
from llmviewer.result.explanation.explain import DEPTH, OWN, ROWS, check_costs, explained


@opt.with_run_options
@opt.with_declared(OF_ONE_RUN)
def command(
    number: Annotated[
        str,
        typer.Argument(
            metavar="NUMBER",
            help=OWN["number"].help,
        ),
    ],
    model: opt.Model = "",
    hardware: opt.Hardware = "",
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    depth: Annotated[
        int, opt.integer_option("depth", "Levels of the tree in tables; JSON has all of them.", least=1)
    ] = DEPTH,
    rows: Annotated[
        int, opt.integer_option("rows", "Largest parts of a sum in tables; the others are one line.", least=1)
    ] = ROWS,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Explains a number: its formula, the values in it, and the source of each, down to the data sheet.

    The tree's arithmetic gives the number again.  `llmviewer explain list` lists the numbers.
    """
    from llmviewer.reports import explanation_page

    if number == "list":
        return _print_names()
    for name, text in (("a model", model), ("--hardware", hardware)):
        if not text:
            raise UserError(f"explain needs {name}: llmviewer explain tpot_s MODEL --hardware NAME")
    kind = views.check_output(format, output, (model, hardware))
    check_costs(number, options)
    result = api.analyze(model, hardware, batch_size=batch_size, input_len=input_len, output_len=output_len, **options)
    found = explained(result, number)
    print_warnings(found.warnings)
    views.show(
        views.Views(
            page=lambda: explanation_page.page(found, depth, rows),
            document=found.to_dict,
            rows=found.rows,
        ),
        kind,
        output,
    )
    return 0


def _print_names() -> int:
    from llmviewer.cli.views import write
    from llmviewer.result.explanation.explain import names

    write("\n".join(names()), None)
    return 0
