"""`llmviewer simulate`: a server under load, request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from llmviewer.cli import campaign, views
from llmviewer.cli import options as opt
from llmviewer.cli.load_options import with_load_options
from llmviewer.cli.views import check_not_an_input, check_writable, open_output
from llmviewer.core.errors import UserError
from llmviewer.simulation.call import BATCHING, simulate
from llmviewer.simulation.options import LOAD
from llmviewer.simulation.result import Simulation
from llmviewer.techniques.options import OPTIONS

#: Exit status after an interrupt, as of a shell: 128 + SIGINT.
INTERRUPTED = 130
#: The engine, whose default depends on the chip.
SERVING_ENGINE = replace(
    OPTIONS["engine"],
    help="Serving engine, with ==VERSION if you know it (default: vllm; llama.cpp on Macs, Ryzen AI, CPUs).",
    default="",
)


@opt.with_run_options
@with_load_options
def command(
    model: opt.Model,
    hardware: opt.Hardware,
    engine: opt.annotation("engine", SERVING_ENGINE) = "",  # type: ignore[valid-type]
    batching: opt.annotation("batching") = BATCHING,  # type: ignore[valid-type]
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Also write the steps and requests to this file, for Perfetto.")
    ] = None,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    scheduler: campaign.Scheduler = "",
    **options: Any,
) -> int:
    """Simulates a server under load: percentiles of latencies, throughput, queues, KV cache.

    One option says when requests arrive: --request-rate, --concurrency, --trace, --burst or --rate-curve.  CSV has one
    row per request.  Exits 1 if the server is saturated or a limit is exceeded.  -o FOLDER/ simulates every combination
    of lists (models, chips, rates ...; texts by semicolons), one row each.
    """
    stated = {"engine": engine} if engine else {}
    if campaign.is_asked(scheduler, output, format):
        if timeline is not None:
            raise UserError("--timeline is of one simulation; a campaign has many")
        chosen = {**stated, "batching": batching, **options}
        return _campaign(chosen, {"model": model, "hardware": hardware}, output or "", scheduler)
    kind = views.check_output(format, output, (model, hardware))
    if timeline is not None:
        check_not_an_input(timeline, (model, hardware))
        check_writable(timeline)
    made = simulate(model, hardware, **stated, batching=batching, **options)
    if timeline is not None:
        _write_timeline(made, timeline)
    views.show(_views(made), kind, output)
    return (0 if made.holds else 1) if made.outcomes[-1].completed else INTERRUPTED


def _campaign(options: dict[str, Any], leading: dict[str, str], folder: str, scheduler: str) -> int:
    from llmviewer.planning.campaign import simulation_campaign

    rest = {name: value for name, value in options.items() if name not in LOAD}
    made = opt.combinations(rest, **leading, **campaign.lists_of_loads(options))
    return campaign.run(simulation_campaign(made), folder, scheduler)


def _views(made: Simulation) -> views.Views:
    def page() -> Any:
        from llmviewer.reports import simulation_page

        return simulation_page.page(made)

    return views.Views(page=page, document=made.to_dict, rows=made.request_rows)


def _write_timeline(made: Simulation, path: str) -> None:
    from llmviewer.reports import simulation_trace

    with open_output(path) as stream:
        stream.writelines(f"{line}\n" for line in simulation_trace.lines(made))
