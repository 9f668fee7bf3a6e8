"""`llmviewer trace`: the predicted timeline of a request, for Perfetto and chrome://tracing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli.views import check_not_an_input, check_writable, open_output, print_warnings
from llmviewer.core.errors import UserError, quoted
from llmviewer.result.timeline.timeline import check_event_count


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    steps: Annotated[int, opt.integer_option("steps", "Maximum number of decode steps in the trace.", least=0)] = 4,
    chips: Annotated[
        int, opt.integer_option("chips", "Chips per pipeline stage in the trace (all do the same); 0 = all.", least=0)
    ] = 0,
    output: Annotated[
        str, typer.Option("-o", "--output", help="Output file; - writes to the terminal.")
    ] = "trace.json",
    no_fit_check: opt.NoFitCheck = False,
    **options: Any,
) -> int:
    """Writes prefill and the first decode steps, kernel by kernel, as JSON for https://ui.perfetto.dev.

    Exits 1 if the workload does not fit in memory.
    """
    from llmviewer.reports import trace

    path = None if output == "-" else output
    if path is not None:
        check_not_an_input(path, (model, hardware))
        check_writable(path)
    request = api.request(batch_size, input_len, output_len)
    result = api.configuration(model, hardware, **options).answer(request)
    chips_drawn = _chips_drawn(result.devices_per_stage, chips)
    events = result.timeline(steps)
    check_event_count(len(events) * chips_drawn)
    runs, refused = result.runs, "the engine refuses to start at this --max-model-len"
    if not result.fits:
        refused = "the workload does not fit in memory"
    print_warnings((*result.warnings, *([] if runs else [refused])))
    with open_output(path) as stream:
        stream.writelines(f"{line}\n" for line in trace.lines(result, events, chips_drawn))
    return 0 if runs or no_fit_check else 1


def _chips_drawn(chips_per_stage: int, requested: int) -> int:
    if requested > chips_per_stage:
        raise UserError(
            f"chips is {quoted(requested)}; allowed: 0 to {chips_per_stage}, the chips of one pipeline stage"
        )
    return requested or chips_per_stage
