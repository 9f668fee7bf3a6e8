"""`llmviewer diagnose`: where a measured run lost its time against the prediction."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import print_warnings
from llmviewer.questions import QUESTIONS

OWN = QUESTIONS["diagnose"].options()


@opt.with_run_options
@opt.with_declared(OWN)
def command(
    measured: Annotated[str, typer.Argument(metavar="MEASURED", help=OWN["measured"].help)],
    model: opt.Model,
    hardware: opt.Hardware,
    engine: opt.annotation("engine") = "",  # type: ignore[valid-type]
    waterfall: Annotated[
        str | None, typer.Option("--waterfall", metavar="FILE", help="Also draw the parts: .png, .svg or .pdf.")
    ] = None,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Compares a measured run with the prediction of the same work, a recorded one operator by operator.

    The marks of engines state engine and work; without them --engine, --stage, --batch-size and --input-len do.
    """
    from llmviewer.calibrate.diagnosis.call import diagnose

    kind = views.check_output(format, output, (measured, model, hardware))
    if waterfall is not None:
        _check_picture(waterfall, (measured, model, hardware))
    made = diagnose(measured, model, hardware, engine=engine, **options)
    answer = made.to_dict()
    if waterfall is not None:
        _draw(answer, waterfall)
    print_warnings(answer["warnings"])
    views.show(views.of(QUESTIONS["diagnose"], made), kind, output)
    return 0


def _check_picture(path: str, inputs: tuple[str, ...]) -> None:
    from llmviewer.cli.plot.command import check_path

    check_path(path, inputs)


def _draw(answer: dict[str, Any], path: str) -> None:
    from llmviewer.cli import process
    from llmviewer.cli.plot.command import save
    from llmviewer.reports.plots import plot, waterfall

    process.silence_matplotlib()
    parts = {part["name"]: part["amount_s"] for part in answer["parts"]}
    totals = ("predicted", answer["predicted_s"]), ("measured", answer["measured_s"])
    title = f"Time of a {answer.get('of', 'pass')}: {answer['model']} on {answer['hardware']}"
    found = waterfall.through(*totals, parts)
    figure = waterfall.draw_steps(found, plot.style_of("light", "page"), title, efficiency={"calibrated"})
    save(figure, path)
