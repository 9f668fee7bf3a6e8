"""`llmviewer calibrate all`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.cli.calibrate import fit as fitting
from llmviewer.cli.calibrate import run as running
from llmviewer.core import data

if TYPE_CHECKING:
    from llmviewer.calibrate.card import Outcome
    from llmviewer.reports.page import Page

Models = Annotated[
    list[str], typer.Option("--model", autocompletion=candidates.models, help="Model that you serve; may be repeated.")
]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware",
        autocompletion=candidates.chips,
        help="auto: the card that the driver names; or a chip's name or YAML.",
    ),
]
Minutes = Annotated[int, opt.integer_option("minutes", "Time for everything, whatever else this machine does.")]
Output = Annotated[
    str, typer.Option("-o", "--output", help="Profile to write; samples go to the folder NAME-samples next to it.")
]


def command(
    model: Models,
    hardware: Hardware = "auto",
    minutes: Minutes = 15,
    tensor_parallel_size: running.Tp = 1,
    output: Output = "profile.yaml",
    device: running.Device = None,
    power: running.Power = False,
    format: opt.PrintedFormat = "table",  # noqa: A002
) -> int:
    """Measure this machine, fit a profile and say what it is worth: errors before and after, in the given minutes.

    Measured are the kernels of the models, those that fits need beside them, and whole layers and models, which are
    never fitted.  The same command goes on where the time or an interrupt ended it.
    """
    import time

    started_at = time.monotonic()
    kind = running.chosen_kind(device, power=power)
    views.check_output(format, output, (hardware, *model))
    from llmviewer.calibrate import card
    from llmviewer.calibrate.deadline import Budget
    from llmviewer.calibrate.record import prepare_folder

    budget = Budget(minutes * 60.0 - (time.monotonic() - started_at))  # torch takes seconds to import
    profile = data.user_path(output) or Path(output).expanduser()
    folder = prepare_folder(profile.with_name(f"{profile.stem}-samples"))
    wanted = card.Wanted(
        models=tuple(dict.fromkeys(model)), kind=kind, hardware="" if hardware == "auto" else hardware,
        tp=tensor_parallel_size, minutes=minutes, power=power,
    )  # fmt: skip
    running.warn_if_busy()
    missing: dict[str, int] = {}
    try:
        with running.progress(missing) as on_progress, fitting.progress() as on_fit:
            outcome = card.calibrate(wanted, folder, budget, on_progress, on_fit)
    except KeyboardInterrupt:
        typer.echo(running.interrupted(folder, missing), err=True)
        return 130
    document = card.document(outcome, wanted, folder, _written(outcome, output), budget.spent_s)

    def page() -> Page:
        from llmviewer.reports import card_page

        return card_page.page(document)

    views.show(views.Views(page=page, document=lambda: document, rows=lambda: document["kernels"]), format, None)
    return 0 if outcome.fitted else 1


def _written(outcome: Outcome, output: str) -> dict[str, str]:
    """Write the chip's YAML, if no spec describes it, and the profile; their paths.

    Without a new profile, the YAML beside an earlier one stays as it is.
    """
    if outcome.inputs is None:
        return {}
    found = {}
    if path := fitting.chip_path_of(outcome.inputs, output):
        if outcome.fitted or not Path(path).exists():
            fitting.put(outcome.inputs.chip_text, path)
        found["chip_file"] = path
    if outcome.fitted:
        fitting.put(outcome.fitted.text, output)
        found["profile"] = output
    return found
