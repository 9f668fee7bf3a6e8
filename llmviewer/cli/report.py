"""`llmviewer report`: all results of some configurations in one file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from llmviewer import api
from llmviewer.api.trials import verdict
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.help import UNSET
from llmviewer.cli.load_options import loaded, with_load_options
from llmviewer.cli.progress import progress
from llmviewer.cli.views import atomic_file, print_warnings, write
from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.result.columns import flat
from llmviewer.result.sweep import Grid, Sweep, parse_values

if TYPE_CHECKING:
    from llmviewer.reports.report import Report

#: Maximum number of configurations; a sweep takes any number.
MAX_REPORT_CONFIGURATIONS = 12
#: Maximum number of points per configuration, which are all in memory.
MAX_REPORT_POINTS = 200_000
#: Batch sizes of the curves if no list of sizes is given.
DEFAULT_BATCH_SIZES = "1:512:*2"
#: Formats that are never printed -> default output file.
DEFAULT_FILES = {"html": "report.html", "xlsx": "report.xlsx"}

Sizes = dict[str, "np.ndarray[Any, np.dtype[np.float64]]"]


@opt.with_run_options
@with_load_options
def command(
    model: opt.Models,
    hardware: opt.Chips,
    batch_size: Annotated[
        str, opt.listed("batch_size", "Batch sizes: a list or ranges; the first is shown in detail.")
    ] = "1",
    input_len: opt.InputLens = "1024",
    output_len: opt.OutputLens = "128",
    format: Annotated[str, typer.Option("--format", help="html, markdown, csv, json, xlsx; else by -o.")] = "",  # noqa: A002
    table: Annotated[
        str, typer.Option(help="Table written to CSV: points, operators, summary, memory, sources.")
    ] = "points",
    output: Annotated[str, typer.Option("-o", "--output", help="Output file: .html, .md, .csv, .json or .xlsx.")] = "",
    page: Annotated[
        bool, typer.Option("--page", help="HTML also holds a page that answers for any batch and lengths.")
    ] = False,
    no_fit_check: opt.NoFitCheck = False,
    **options: Any,
) -> int:
    """Writes tables, charts, layer graphs and all sources to one HTML file, or Markdown, CSV, JSON, Excel.

    The first of each list of sizes is shown operator by operator, all of them as curves; without a list, batch sizes
    from 1 to 512.  With a load (--request-rate, --concurrency, --trace ...) it simulates each configuration under it.
    Exits 1 if a configuration does not fit in memory, says which, and then writes over no file.
    """
    from llmviewer.reports.tables import TABLES

    kind, path = _kind(format, output)
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    if page and kind != "html":
        raise UserError(f"--page is a part of HTML; the format is {kind}: leave it out, or write -o NAME.html")
    views.check_output(kind, path, (*model.split(","), *hardware.split(",")), known=(*FORMATS,))
    sizes = {
        name: parse_values(name, DEFAULT_SIZES[name] if text is None else text)
        for name, text in zip(SIZES, (batch_size, input_len, output_len), strict=True)
    }
    load, options = loaded(options)
    combinations = opt.combinations(options, model=model, hardware=hardware)
    if kind == "xlsx":
        _check_rows("points", len(_grid(sizes)) * len(combinations))  # before they are computed
    report = _report(sizes, combinations)
    if load:
        load |= {"input_len": input_len, "output_len": output_len}
        report = _under_load(report, combinations, load, drawn=kind == "html")
    if page:
        report = _with_page(report, sizes, combinations)
    print_warnings(text for result in report.results.values() for text in result.warnings)
    refused = [] if no_fit_check else [*_misfits(report)]
    if not (refused and path is not None and Path(path).is_file()):
        FORMATS[kind](report, path, table)
    else:
        refused.append(f"'{printable(path)}' stays as it was: --no-fit-check, or another -o, writes the report")
    print_warnings(refused)
    return 1 if refused else 0


def _misfits(report: Report) -> Iterator[str]:
    """Why the command exits 1: each configuration that does not fit or start, with what it needs and what there is."""
    for title, result in report.results.items():
        if not result.fits:
            memory = result.memory_at()
            needed, budget = (memory[name] / 2**30 for name in ("total_bytes", "budget_bytes"))
            yield f"{title} does not fit: {needed:,.1f} GiB of {budget:,.1f} GiB for each device (exit status 1)"
        elif not result.runs:
            yield f"{title}: the engine refuses to start at this --max-model-len (exit status 1)"


getattr(command, UNSET).update(("input_len", "output_len"))  # a load has lengths of its own unless these are typed
SIZES = ("batch_size", "input_len", "output_len")
DEFAULT_SIZES = {"input_len": "1024", "output_len": "128"}


def _kind(format: str, output: str) -> tuple[str, str | None]:  # noqa: A002
    """Format and file: by --format, else by the suffix, else HTML."""
    suffix = Path(output).suffix.lower()
    known = [one for one, kind in views.SUFFIXES.items() if kind in FORMATS]
    if not format and output and suffix not in known:
        raise UserError(f"output is {quoted(output)}; allowed: a name that ends in {', '.join(known)}, or --format")
    kind = format or views.SUFFIXES.get(suffix, "html")
    return kind, output or DEFAULT_FILES.get(kind)


def _report(sizes: Sizes, configurations: list[dict[str, Any]]) -> Report:
    from llmviewer.reports.report import Report

    if len(configurations) > MAX_REPORT_CONFIGURATIONS:
        count, most = len(configurations), MAX_REPORT_CONFIGURATIONS
        raise UserError(f"{count} configurations; a report shows at most {most}, sweep takes any number")
    by_title = {title: api.configuration(**options) for title, options in opt.unique_by_name(configurations).items()}
    request = api.request(*(int(sizes[name][0]) for name in SIZES))
    grid = _grid(sizes)
    Sweep(configurations=tuple(by_title.values()), grid=grid).check()
    results = {title: one.answer(request) for title, one in by_title.items()}
    with progress(len(grid) * len(by_title)) as advance:
        columns = _joined(_columns(by_title, grid, advance))
    verdicts = {title: verdict(one, request, results[title]) for title, one in by_title.items()}
    return Report(results=results, points=columns, verdicts=verdicts, command=_command())


def _under_load(report: Report, configurations: list[dict[str, Any]], load: dict[str, Any], *, drawn: bool) -> Report:
    """The report with a simulation of every configuration, and, if drawn, pictures of it."""
    from llmviewer.reports.report import pictures
    from llmviewer.simulation.call import simulate

    named = opt.unique_by_name(configurations)
    made = {title: simulate(**options, **load) for title, options in named.items()}
    return replace(
        report,
        loads={title: one.to_dict() for title, one in made.items()},
        pictures={title: pictures(one) for title, one in made.items()} if drawn else {},
    )


def _with_page(report: Report, sizes: Sizes, combinations: list[dict[str, Any]]) -> Report:
    """The report with the page that answers for other sizes of its configurations."""
    from llmviewer.reports.offline import page

    first = {name: int(sizes[name][0]) for name in SIZES}
    return replace(report, page=page.written(combinations, first)[0])


def _command() -> str:
    """The command line of this process; empty if another program calls the command."""
    name, *words = sys.argv
    return shlex.join(("llmviewer", *words)) if Path(name).stem in ("llmviewer", "__main__") else ""


def _grid(sizes: Sizes) -> Grid:
    """All points; DEFAULT_BATCH_SIZES are added if no size is a list."""
    columns = {name: np.unique(column) for name, column in sizes.items()}
    if all(len(column) == 1 for column in columns.values()):
        columns["batch_size"] = np.unique([*columns["batch_size"], *parse_values("batch_size", DEFAULT_BATCH_SIZES)])
    grid = Grid(batch_sizes=columns["batch_size"], input_lens=columns["input_len"], output_lens=columns["output_len"])
    if len(grid) > MAX_REPORT_POINTS:
        raise UserError(f"{len(grid):,} points; a report takes at most {MAX_REPORT_POINTS:,}, sweep takes any number")
    return grid


def _columns(
    by_title: dict[str, api.Configuration], grid: Grid, advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """Columns of all points, chunk by chunk.  advance: called with the number of points of each chunk."""
    for title, one in by_title.items():
        for columns in Sweep(configurations=(one,), grid=grid).chunks(advance):
            yield {"configuration": [title] * len(columns["batch_size"]), **columns}


def _joined(chunks: Iterator[dict[str, Any]]) -> dict[str, list[Any]]:
    """One list per column; None for columns that a configuration does not have."""
    joined: dict[str, list[Any]] = {}
    rows = 0
    for columns in chunks:
        count = len(columns["configuration"])
        for name in (*joined, *(name for name in columns if name not in joined)):
            column = columns.get(name)
            values = [None] * count if column is None else np.asarray(column).tolist()
            joined.setdefault(name, [None] * rows).extend(values)
        rows += count
    return joined


def _html(report: Report, path: str | None, table: str) -> None:
    from llmviewer.reports.html import page

    write(page.text(report), path)


def _markdown(report: Report, path: str | None, table: str) -> None:
    from llmviewer.reports import markdown, report_page

    write(markdown.text(report_page.page(report)), path)


def _json(report: Report, path: str | None, table: str) -> None:
    import json

    write(json.dumps(report.to_dict(), indent=1), path)


def _csv(report: Report, path: str | None, table: str) -> None:
    from llmviewer.reports.tables import TABLES, csv_text

    write(csv_text(TABLES[table](report)), path)


def _check_rows(name: str, count: int) -> None:
    """Raise UserError for a table that is longer than a sheet of Excel."""
    from llmviewer.reports.tables import MAX_ROWS

    if count > MAX_ROWS:
        raise UserError(f"{count:,} rows of {name}; an Excel sheet takes {MAX_ROWS:,}: write CSV or JSON instead")


def _xlsx(report: Report, path: str | None, table: str) -> None:
    from llmviewer.reports.tables import TABLES, write_excel

    sheets = {name: [flat(row) for row in rows(report)] for name, rows in TABLES.items()}
    for name, rows in sheets.items():
        _check_rows(name, len(rows))
    with atomic_file(path or DEFAULT_FILES["xlsx"]) as temporary:
        write_excel(sheets, temporary)


FORMATS: dict[str, Callable[[Report, str | None, str], None]] = {
    "html": _html,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
    "xlsx": _xlsx,
}
