"""`llmviewer sweep`: many batch sizes and lengths, one row per point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli import rows, views
from llmviewer.cli.output import print_warnings
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
    **options: Any,
) -> int:
    """Prints one row per combination of batch sizes, lengths, models, chips and lists of options.

    Lists are separated by commas; for options whose values contain commas (--speculative, --offload, --batching ...)
    by semicolons: --speculative 'none;draft=llama-3.2-1b,tokens=best,acceptance=0.8'.
    """
    kind = views.check_output(format, output, (*model.split(","), *hardware.split(",")), known=WRITERS)
    grid = Grid(
        batch_sizes=parse_values("batch_size", batch_size),
        input_lens=parse_values("input_len", input_len),
        output_lens=parse_values("output_len", output_len),
    )
    made = opt.combinations(options, model=model, hardware=hardware)
    sweep = Sweep(configurations=tuple(api.configuration(**chosen) for chosen in made), grid=grid)
    warnings = sweep.check()
    with progress(len(sweep)) as advance:
        WRITERS[kind](sweep.chunks(advance), output)
    print_warnings(warnings)
    return 0


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr after one second; yields a function that takes the number of new points."""
    import time

    started = time.monotonic()
    bar: Any = None
    done = 0

    def advance(points: int) -> None:
        nonlocal bar, done
        done += points
        if bar is None and time.monotonic() - started > 1.0:
            bar = _bar(total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    bar.add_task("points", total=total)
    bar.start()
    return bar
