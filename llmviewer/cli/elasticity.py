"""`llmviewer elasticity`: what ten percent more of each resource of a chip buys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.cli.output import print_warnings
from llmviewer.planning.elasticity import METRICS, Elasticities, elasticity


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    metric: Annotated[
        str, typer.Option(autocompletion=candidates.one_of(*METRICS), help="tpot_s, ttft_s or e2e_s.")
    ] = "tpot_s",
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Tells by how much a time falls for ten percent more bandwidth, peak, link rate, launches or host speed.

    `llmviewer plot elasticity` draws it.
    """
    kind = views.check_output(format, output, (model, hardware))
    sizes: dict[str, Any] = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    found: Elasticities = elasticity(model, hardware, metric=metric, **sizes, **options)
    print_warnings(found.warnings)

    def page() -> Any:
        from llmviewer.reports import elasticity_page

        return elasticity_page.page(found)

    views.show(views.Views(page=page, document=found.to_dict, rows=lambda: rows(found)), kind, output)
    return 0


def rows(found: Elasticities) -> list[dict[str, Any]]:
    """One row per resource, and one of the rest."""
    shared = {"model": found.model, "hardware": found.hardware, "metric": found.metric, "value": found.value}
    return [
        {**shared, "resource": name, "elasticity": share}
        for name, share in (*found.by_resource.items(), ("rest", found.rest))
    ]
