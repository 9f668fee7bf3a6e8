"""`llmviewer compare`: several configurations side by side."""

from __future__ import annotations

from typing import Any

from llmviewer import api
from llmviewer.api.build import with_costs
from llmviewer.api.calls import EVERY_CHIP, compared
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.core.errors import UserError
from llmviewer.questions import QUESTIONS
from llmviewer.result.costs import COSTS

#: Maximum number of columns; a sweep takes any number of configurations.
MAX_COMPARED = 12


@opt.with_run_options
@opt.with_declared(COSTS)
def command(
    model: opt.Models,
    hardware: opt.Chips,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    no_fit_check: opt.NoFitCheck = False,
    **options: Any,
) -> int:
    """Compares every combination of the lists, one column each, with ratios to the first.

    Lists are separated by commas; for options whose values contain commas (--speculative, --offload, --batching ...)
    by semicolons: --offload 'weights=1;weights=1,compute=host'.

    --hardware all compares one configuration on every known chip, a row each, the fastest that holds it first.

    Says first which one to take, for its speed and for the money.  Exits 1 if none fits in memory.
    """
    kind = views.check_output(format, output, (*model.split(","), *hardware.split(",")))
    request = api.request(batch_size, input_len, output_len)
    costs, chosen = with_costs([] if hardware.strip() == EVERY_CHIP else hardware.split(","), options)
    combinations = opt.combinations(chosen, model=model, hardware=hardware)
    if len(combinations) > MAX_COMPARED:
        raise UserError(
            f"{len(combinations)} configurations; compare shows at most {MAX_COMPARED}, sweep takes any number"
        )
    comparison = compared(request, combinations, costs)
    views.show(views.of(QUESTIONS["compare"], comparison), kind, output)
    return 0 if comparison.runs or no_fit_check else 1
