"""`llmviewer trace`: the predicted timeline of a request, for Perfetto and chrome://tracing."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli.output import open_output, check_not_an_input, print_warnings, check_writable
from llmviewer.core.errors import UserError, quoted
from llmviewer.result.timeline.traced import check_event_count


@partial(opt.with_run_options, efficiency="calibrated")
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    steps: Annotated[int, opt.integer_option("steps", "Decode steps drawn at most.", least=0)] = 4,
    chips: Annotated[int, opt.integer_option("chips", "Chips of a stage drawn (all do the same); 0 = all.", least=0)] = 0,
    output: Annotated[str, typer.Option("-o", "--output", help="The file, - for the terminal.")] = "trace.json",
    no_fit_check: opt.NoFitCheck = False,
    **options: Any,
) -> int:
    """Prefill and the first decode steps, kernel by kernel: a JSON that https://ui.perfetto.dev opens.

    Exits 1 when the workload does not fit in memory.
    """
    from llmviewer.reports import trace

    path = None if output == "-" else output
    if path is not None:
        check_not_an_input(path, (model, hardware))
        check_writable(path)
    request = api.request(batch_size, input_len, output_len)
    result = api.configuration(model, hardware, **options).answer(request)
    drawn = _chips_drawn(result.devices_per_stage, chips)
    events = result.timeline(steps)
    check_event_count(len(events) * drawn)
    print_warnings((*result.warnings, *([] if result.fits else ["it does not fit in memory"])))
    with open_output(path) as stream:
        stream.writelines(f"{line}\n" for line in trace.lines(result, events, drawn))
    return 0 if result.fits or no_fit_check else 1


def _chips_drawn(there: int, asked: int) -> int:
    if asked > there:
        raise UserError(f"chips is {quoted(asked)}; allowed: 0 to {there}, of one stage")
    return asked or there
