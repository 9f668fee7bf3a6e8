"""`llmviewer sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli import rows, views
from llmviewer.cli.output import print_warnings
from llmviewer.core.workload import Request
from llmviewer.result.sweep import Grid, parse_values
from llmviewer.serving.schedule import check_passes

Columns = dict[str, Any]

#: format -> writer of chunks of columns to a path.
WRITERS: dict[str, Callable[[Iterator[Columns], str | None], None]] = {
    "table": rows.table,
    "csv": rows.csv,
    "json": rows.json,
    "parquet": rows.parquet,
}


@opt.with_run_options
def command(
    model: opt.Model,
    hardware: opt.Chips,
    batch_size: Annotated[str, typer.Option(help="Batch sizes: 1,2,4:64:*2 multiplies, 8:64:+8 adds.")] = "1",
    input_len: Annotated[str, typer.Option(help="Prompt lengths, lists and ranges likewise.")] = "1024",
    output_len: Annotated[str, typer.Option(help="Output lengths, lists and ranges likewise.")] = "128",
    format: Annotated[str, typer.Option("--format", help="table, csv, json, parquet.")] = "table",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Every combination of batch sizes, lengths, chips and lists of options: one tidy row per point.

    A list is separated by commas; of options whose own texts hold commas (--speculative, --offload, --batching ...) by
    semicolons: --speculative 'none;draft=llama-3.2-1b,tokens=best,acceptance=0.8'.
    """
    views.check_output(format, output, (model, *hardware.split(",")), known=WRITERS)
    grid = Grid(
        batch_sizes=parse_values("batch_size", batch_size),
        input_lens=parse_values("input_len", input_len),
        output_lens=parse_values("output_len", output_len),
    )
    configurations = [api.configuration(model, **chosen) for chosen in opt.combinations(options, hardware=hardware)]
    warned = [text for configuration in configurations for text in _check_largest(configuration, grid.largest())]
    with progress(len(grid) * len(configurations)) as seen:
        WRITERS[format](_chunks(configurations, grid, seen), output)
    print_warnings(warned)
    return 0


def _check_largest(configuration: api.Configuration, largest: Request) -> tuple[str, ...]:
    """Raise what any point would raise, before a row is written; what a reader of the rows should know."""
    check_passes(largest, configuration.token_budget)
    configuration.answer(replace(largest, output_len=np.ones(1))).columns()
    return api.warnings(configuration.model, largest)


def _chunks(configurations: list[api.Configuration], grid: Grid, seen: Callable[[int], None]) -> Iterator[Columns]:
    for configuration in configurations:
        for request in grid.chunks(configuration.token_budget, configuration.most_points):
            columns = configuration.answer(request).columns()
            yield columns
            seen(len(columns["batch_size"]))


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr once a second has passed; what to call with the number of points done."""
    import time

    started = time.monotonic()
    bar: Any = None
    done = 0

    def seen(points: int) -> None:
        nonlocal bar, done
        done += points
        if bar is None and time.monotonic() - started > 1.0:
            bar = _bar(total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done)

    try:
        yield seen
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
