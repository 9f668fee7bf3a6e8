"""`llmviewer analyze`: one model on one chip, operator by operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer import api
from llmviewer.api.configuration import of_run
from llmviewer.api.trials import verdict
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.core.errors import UserError
from llmviewer.language.option import Panel
from llmviewer.result.costs import OF_ONE_RUN
from llmviewer.result.result import Result, Verdict, towers

if TYPE_CHECKING:
    from llmviewer.reports.page import Page


@opt.with_run_options
@opt.with_declared(OF_ONE_RUN)
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    no_fit_check: opt.NoFitCheck = False,
    brief: Annotated[
        bool, typer.Option("--brief", rich_help_panel=Panel.OUTPUT.value, help="Print the first five lines alone.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            rich_help_panel=Panel.OUTPUT.value,
            help="Print the operators of both stages, as files and pipes always have them.",
        ),
    ] = False,
    **options: Any,
) -> int:
    """Prints FLOPs, bytes, intensity, bound and time of every operator in prefill and decode, memory, TTFT and TPOT.

    Most options are techniques: `llmviewer techniques show NAME` describes their values, `techniques list` all of them.

    A terminal shows the operators of the stage that takes most of the request.  Exits 1 if the workload does not fit
    in memory.
    """
    kind = views.check_output(format, output, (model, hardware))
    if brief and (full or kind in ("json", "csv")):
        raise UserError(f"--brief prints five lines; remove {'--full' if full else f'--format {kind}'}")
    usual = sys.stdout.isatty() and output is None and not full
    request = api.request(batch_size, input_len, output_len)
    configuration = of_run(model, hardware, options)
    result = configuration.answer(request)
    long = "brief" if brief else "usual" if usual else "full"
    views.show(_views(result, lambda: verdict(configuration, request, result), long), kind, output)
    return 0 if result.runs or no_fit_check else 1


def _views(result: Result, judged: Callable[[], Verdict], long: str) -> views.Views:
    def page() -> Page:
        from llmviewer.reports import analysis_page

        return analysis_page.page(result, found=judged(), long=long)

    return views.Views(page=page, document=result.to_dict, rows=lambda: operator_rows(result.alone()))


def operator_rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per stage and operator; the first columns are the workload."""
    shared = {
        "model": answer["model"]["name"],
        "hardware": answer["hardware"]["name"],
        "efficiency": answer["efficiency"]["kind"],
        **answer["workload"],
    }
    return [
        {**shared, "stage": name, **operator}
        for name, stage in {**towers(answer.get("images", ())), **answer["stages"]}.items()
        for operator in stage["operators"]
    ]
