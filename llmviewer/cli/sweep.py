"""`llmviewer sweep`: many batch sizes and lengths, one row per point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from llmviewer import api
from llmviewer.api.build import with_costs
from llmviewer.api.configuration import priced
from llmviewer.cli import campaign, rows, views
from llmviewer.cli import options as opt
from llmviewer.cli.progress import progress
from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import UserError
from llmviewer.result.costs import COSTS
from llmviewer.result.sweep import Grid, Sweep, parse_values

Columns = dict[str, Any]

#: format -> function that writes chunks of columns to a path.
WRITERS: dict[str, Callable[[Iterator[Columns], str | None], None]] = {
    "table": rows.table,
    "csv": rows.csv,
    "json": rows.json,
    "parquet": rows.parquet,
}


@opt.with_run_options
@opt.with_declared(COSTS)
def command(
    model: opt.Models,
    hardware: opt.Chips,
    batch_size: Annotated[
        str, opt.listed("batch_size", "Batch sizes: a list (1,2,4) or ranges (4:64:*2 doubles, 8:64:+8 adds 8).")
    ] = "1",
    input_len: opt.InputLens = "1024",
    output_len: opt.OutputLens = "128",
    format: Annotated[str, opt.format_option(*WRITERS)] = "",  # noqa: A002
    output: opt.Output = None,
    scheduler: campaign.Scheduler = "",
    **options: Any,
) -> int:
    """Prints one row per combination of batch sizes, lengths, models, chips and lists of options.

    Lists are separated by commas; for options whose values contain commas (--speculative, --offload, --batching ...)
    by semicolons: --speculative 'none;draft=llama-3.2-1b,tokens=best,acceptance=0.8'.  -o FOLDER/ runs on all cores.
    """
    costs, chosen = with_costs(hardware.split(","), options)
    made = opt.combinations(chosen, model=model, hardware=hardware)
    if campaign.is_asked(scheduler, output, format):
        if costs is not None:
            stated = ", ".join(COSTS[name].spellings(name)[0] for name in COSTS if options.get(name) is not None)
            raise UserError(f"{stated}: a folder of points has the known prices; write to a file, or remove it")
        sizes = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
        return _campaign(made, sizes, output or "", scheduler)
    kind = views.check_output(format, output, (*model.split(","), *hardware.split(",")), known=WRITERS)
    grid = Grid(
        batch_sizes=parse_values("batch_size", batch_size),
        input_lens=parse_values("input_len", input_len),
        output_lens=parse_values("output_len", output_len),
    )
    sweep = Sweep(configurations=tuple(priced(api.configuration(**one), costs) for one in made), grid=grid)
    warnings = sweep.check()
    with progress(len(sweep)) as advance:
        WRITERS[kind](sweep.chunks(advance), output)
    print_warnings(warnings)
    return 0


def _campaign(made: list[dict[str, Any]], sizes: dict[str, str], folder: str, scheduler: str) -> int:
    from llmviewer.planning.campaign import sweep_campaign

    asked, warnings = sweep_campaign(made, sizes)
    status = campaign.run(asked, folder, scheduler)
    print_warnings(warnings)
    return status
