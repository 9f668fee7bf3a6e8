"""`llmviewer calibrate run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import MAX_LINE_CHARACTERS, UserError, printable

if TYPE_CHECKING:
    from llmviewer.calibrate.model_plan import ModelPlan
    from llmviewer.calibrate.run import Progress, Summary
    from llmviewer.calibrate.sizes import RunSize


Tp = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", "--tp", min=1, help="Devices that share the model's layers.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; default: CUDA if available.")]
Power = Annotated[
    bool, typer.Option("--power", help="Mean power of every row by the board's counter of energy; half a second each.")
]


def command(
    output: Annotated[str, typer.Option("-o", "--output", help="Directory for samples.jsonl; a rerun resumes it.")],
    device: Device = None,
    quick: Annotated[bool, typer.Option("--quick", help="At most 5 minutes on a GPU, a minute on a CPU.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every shape, without time limit.")] = False,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            autocompletion=candidates.models,
            help="Only the shapes of this model, then its layers, measured beside predicted.",
        ),
    ] = "",
    tensor_parallel_size: Tp = 1,
    power: Power = False,
) -> int:
    """Time real kernels on this machine; write raw samples and environment as JSON lines."""
    if quick and full:
        raise UserError("--quick and --full exclude each other")
    if tensor_parallel_size > 1 and not model:
        raise UserError("-tp divides the layers of a model; name it with --model")
    from llmviewer.calibrate.record import prepare_folder

    kind = chosen_kind(device, power=power)
    size = "quick" if quick else "full" if full else "default"
    chosen, planned = _chosen(kind, size, model, tensor_parallel_size, power=power)
    folder = prepare_folder(output)
    from llmviewer.calibrate.run import run

    warn_if_busy()
    missing: dict[str, int] = {}
    try:
        with progress(missing) as on_progress:
            summary = run(folder, device, chosen, on_progress, cases=planned.cases if planned else None)
    except KeyboardInterrupt:
        typer.echo(interrupted(folder, missing), err=True)
        return 130
    _tell(summary, size)
    if planned:
        _prove(folder, model, planned.missing)
    return 0


def chosen_kind(device: str | None, *, power: bool) -> str:
    """The kind of device to measure, with its threads pinned.  Raises UserError for power that nothing counts."""
    from llmviewer.calibrate import environment

    environment.pin_threads()
    kind = environment.choose_device(device)
    if power and kind != "cuda":
        raise UserError("--power reads the energy of a graphics card's board (NVML); a processor has no such counter")
    return kind


def warn_if_busy() -> None:
    """Warn if other programs use this machine."""
    from llmviewer.calibrate import environment

    if load := environment.busy():
        print_warnings([f"this machine is busy ({load}): many rows will be unstable"])


def _chosen(kind: str, size: str, model: str, tp: int, *, power: bool) -> tuple[RunSize, ModelPlan | None]:
    """Shapes and limits of the run, and the cases of a model if one is named."""
    from llmviewer.calibrate import model_plan, sizes
    from llmviewer.calibrate.run import POWER_S

    chosen = sizes.size_named(kind, size)
    if power:
        chosen = replace(chosen, power_s=POWER_S)
    return chosen, model_plan.plan_of(model, tp, chosen) if model else None


def _prove(folder: Path, model: str, missing: tuple[str, ...]) -> None:
    """Print kernels and layers of a model, measured beside predicted, and what was not measured."""
    from llmviewer.calibrate import proof
    from llmviewer.reports import proof_page

    document = proof.document(folder, model, missing)
    views.show(views.Views(page=lambda: proof_page.page(document), document=lambda: document, rows=list), "table", None)


def interrupted(folder: Path, missing: Mapping[str, int]) -> str:
    """Number of rows that an interrupted run keeps, what it lacks by table, and how to continue and use the rows."""
    from llmviewer.calibrate.record import FILE, rows_kept
    from llmviewer.calibrate.refusals import in_shell

    rows, where = rows_kept(folder), in_shell(folder)
    if not rows:
        return "interrupted: nothing was measured yet; the same command starts again"
    use = f"`llmviewer calibrate fit {where} -o profile.yaml` uses them"
    lacking = f" (missing: {listed(missing)})" if missing else ""
    return f"interrupted: {rows} rows are kept in {where}/{FILE}{lacking}; the same command continues after them, {use}"


def listed(tables: Mapping[str, int]) -> str:
    """Rows by table in words."""
    return ", ".join(f"{table} {rows}" for table, rows in tables.items())


def _estimate(first: Progress) -> str:
    """Rows to measure by table, and between which times that takes."""
    most = f" to {_minutes(first.left_s)} min" if first.left_s < float("inf") else " min or more, without limit"
    least = _minutes(min(first.least_s, first.left_s))
    return f"{first.total} rows to measure ({listed(first.missing)}): {least}{most}"


def _minutes(seconds: float) -> str:
    return f"{max(int(seconds), 0) // 60}:{max(int(seconds), 0) % 60:02d}"


def _tell(summary: Summary, size: str) -> None:
    """Print how many rows were measured, skipped and left out, and the command that uses them."""
    from llmviewer.calibrate.refusals import in_shell

    facts = summary.environment
    lines = [f"{facts['device']} ({facts['device_name']}), torch {facts['torch']}: {summary.seconds:.0f} s"]
    if summary.repaired:
        lines.append("the last line of the file was truncated; it was removed and measured again")
    if summary.kept:
        lines.append(f"{summary.kept} rows were already measured")
    for table, rows in summary.measured.items():
        lines.append(f"{table}: {rows} rows, {summary.unstable[table]} unstable")
    lines += [f"skipped: {rows} rows: {reason}" for reason, rows in summary.skipped.items()]
    if left := sum(summary.left_out.values()):
        named = listed(summary.left_out)
        lines.append(f"left out: {left} rows for lack of time in a {size} run ({named}); run again to resume")
    lines.append(f"written: {summary.path}")
    lines.append(f"next: llmviewer calibrate fit {in_shell(summary.path.parent)} -o profile.yaml")
    typer.echo("\n".join(printable(line, MAX_LINE_CHARACTERS) for line in lines))


@contextmanager
def progress(missing: dict[str, int]) -> Iterator[Callable[[Progress], None]]:
    """Estimate and progress bar on stderr with the time left, drawn between rows so as not to disturb a measurement.

    missing: receives the rows not measured yet, by table.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"), TextColumn("{task.description}"))
    bar = Bar(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task("", total=None, left="")

    def on_progress(progress: Progress) -> None:
        missing.clear()
        missing.update(progress.missing)
        if not progress.done and progress.total:
            bar.console.print(_estimate(progress), highlight=False, soft_wrap=True)
        if not progress.done:
            return
        fields: dict[str, Any] = {"left": f"{_minutes(progress.left_s)} left", "description": progress.now}
        bar.update(task, completed=progress.done, total=progress.total, **fields)
        bar.refresh()

    with bar:
        yield on_progress
