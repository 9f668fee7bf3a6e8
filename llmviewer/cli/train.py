"""`llmviewer train`: does a training step fit, and how long does it take?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.cli.output import print_warnings
from llmviewer.planning.train import OPTIMIZERS, Training, train


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = 512,
    optimizer: Annotated[
        str,
        typer.Option(
            autocompletion=candidates.one_of(*OPTIMIZERS),
            help="adamw, adamw-8bit, lion, lion-8bit, sgd; paged-... keeps its state on the host.",
        ),
    ] = "adamw",
    recompute: Annotated[str, typer.Option(help="Share of the layers that run again before backward.")] = "1",
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Tells whether a training step fits in memory, and how long it takes.

    All weights are trained; with --lora its adapters alone, with --speculative the heads or the draft model alone.
    """
    kind = views.check_output(format, output, (model, hardware))
    sizes: dict[str, Any] = {"batch_size": batch_size, "input_len": input_len, "recompute": recompute}
    found: Training = train(model, hardware, optimizer=optimizer, **sizes, **options)
    print_warnings(found.warnings)

    def page() -> Any:
        from llmviewer.reports import training_page

        return training_page.page(found)

    views.show(views.Views(page=page, document=found.to_dict, rows=lambda: rows(found)), kind, output)
    return 0 if found.fits else 1


def rows(found: Training) -> list[dict[str, Any]]:
    """One row with all figures."""
    document = found.to_dict()
    step = document.pop("step")
    left_out = ("schema", "warnings")
    return [{**{name: value for name, value in document.items() if name not in left_out}, **step}]
