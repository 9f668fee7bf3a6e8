"""`llmviewer why`: the difference between two runs, split over the factors in which they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.planning.run_metrics import RUN_METRICS
from llmviewer.planning.why import why

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

LINE = "A run as typed after `llmviewer analyze`, in quotes: 'MODEL --hardware CHIP ...'."


def command(
    a: Annotated[str, typer.Argument(metavar="A", help=LINE)],
    b: Annotated[str, typer.Argument(metavar="B", help=LINE)],
    metric: Annotated[
        str,
        typer.Option(
            autocompletion=candidates.one_of(*RUN_METRICS),
            help="ttft_s, tpot_s, e2e_s, output_tokens_per_s, total_bytes ...",
        ),
    ] = "tpot_s",
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Splits the difference between two runs over bandwidth, peak, kernels, options and sizes, so that it adds up.

    A factor's amount is the mean, over all orders in which the factors may change from A to B, of what its own change
    adds (Shapley values).  Also prints the difference by operator, and how certain its sign is.
    """
    kind = views.check_output(format, output)
    found = why(a, b, metric=metric)
    answer = found.to_dict()

    def page() -> Page:
        from llmviewer.reports import why_page

        return why_page.page(answer)

    views.show(views.Views(page=page, document=lambda: answer, rows=lambda: rows(answer)), kind, output)
    return 0


def rows(answer: dict[str, object]) -> list[dict[str, object]]:
    """One row per factor, after the metric and its values."""
    shared = {name: answer[name] for name in ("metric", "difference")}
    factors: list[dict[str, object]] = answer["factors"]  # type: ignore[assignment]
    return [{**shared, **{n: v for n, v in one.items() if n != "together"}} for one in factors]
