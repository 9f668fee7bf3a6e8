"""`llmviewer advise`: changes of a run that make it better, each tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.language.option import Panel
from llmviewer.planning.advise import advise
from llmviewer.planning.run_metrics import RUN_METRICS

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

COMMON = Panel.COMMON.value


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    metric: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMMON,
            autocompletion=candidates.one_of(*RUN_METRICS),
            help="To improve: tpot_s, ttft_s, e2e_s, output_tokens_per_s ...",
        ),
    ] = "tpot_s",
    ttft: Annotated[
        str | None, typer.Option(rich_help_panel=COMMON, help="Limit of the time to first token: 500ms.")
    ] = None,
    tpot: Annotated[
        str | None, typer.Option(rich_help_panel=COMMON, help="Limit of the time per output token: 20ms.")
    ] = None,
    max_gpus: Annotated[
        int | None,
        opt.integer_option("max_gpus", "Most devices; default: as many as asked, more if nothing else holds."),
    ] = None,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Tries number formats, kernels, batches, chunks, tensor groups, speculation and offloading, and combines them.

    Each change is answered as by analyze and ranked by its gain, with its published risk for the quality of answers.
    The combination takes the best change, then the best on top of it, until none gains 2 %.

    Exits 1 if nothing that was tried fits in memory and keeps the limits.
    """
    kind = views.check_output(format, output, (model, hardware))
    sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    found = advise(model, hardware, metric=metric, ttft=ttft, tpot=tpot, max_gpus=max_gpus, **sizes, **options)
    answer = found.to_dict()

    def page() -> Page:
        from llmviewer.reports import advice_page

        return advice_page.page(answer)

    views.show(views.Views(page=page, document=lambda: answer, rows=lambda: answer["advice"]), kind, output)
    return 0 if found.holds else 1
