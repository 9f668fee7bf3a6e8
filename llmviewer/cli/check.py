"""`llmviewer check`: a contract that predictions must keep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import check_not_an_input, check_writable, print_warnings, write
from llmviewer.core.errors import UserError, printable
from llmviewer.planning.contract import OWN, check
from llmviewer.questions import QUESTIONS


def command(
    contract: Annotated[str, typer.Argument(metavar="CONTRACT", help=OWN["contract"].help)],
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Also write the lines as JUnit XML, for CI.")
    ] = None,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Checks each line of a contract, such as `- llama-3.1-8b on l40s, vllm: tpot_s <= 30 ms at batch 8`.

    Exits 1 if a line breaks; all lines are printed, with by how much each breaks.
    """
    from llmviewer.reports import contract_page

    kind = views.check_output(format, output, (contract,))
    if junit is not None:
        check_not_an_input(junit, (contract,))
        check_writable(junit)
        if output is not None and Path(junit).expanduser().resolve() == Path(output).expanduser().resolve():
            raise UserError(f"--junit and --output are both '{printable(junit)}'; write to two files")
    made = check(contract)
    if junit is not None:
        write(contract_page.junit(made), junit)
    print_warnings(f"line {line.number}: {note}" for line in made.lines for note in line.notes)
    views.show(views.of(QUESTIONS["check"], made), kind, output)
    return 0 if made.holds else 1
