"""`llmviewer hardware list`, `prices` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.cli.help import Listing
from llmviewer.result import describe

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

app = typer.Typer(cls=Listing, no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=candidates.chips, help="A chip's name, or a path to its YAML.")
]


@app.command("list")
def list_hardware(format: opt.Format = "", output: opt.Output = None) -> int:  # noqa: A002
    """Lists every chip with peak, bandwidth, memory and power."""
    kind = views.check_output(format, output)
    objects = describe.hardware_list()

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.hardware(objects)

    views.show(views.Views(page=page, document=lambda: objects, rows=lambda: objects), kind, output)
    return 0


@app.command("prices")
def list_prices(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", autocompletion=candidates.chips, help="A chip, or several behind commas."),
    ] = "",
    prices: Annotated[str, typer.Option("--prices", help="Your file of prices beside the known ones.")] = "",
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Lists the known prices of chips with their days; `-o mine.csv` writes a file that --prices reads."""
    from llmviewer.result import costs

    kind = views.check_output(format, output, (prices,) if prices else ())
    objects = costs.listed(prices or None, filter(None, name.split(",")))

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.prices(objects)

    views.show(views.Views(page=page, document=lambda: objects, rows=lambda: objects), kind, output)
    return 0


@app.command("show")
def show_hardware(name: Name, format: opt.Format = "", output: opt.Output = None) -> int:  # noqa: A002
    """Shows every figure of one chip with its source."""
    kind = views.check_output(format, output, (name,))
    card = describe.hardware_card(name)

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.chip(card)

    rows = [{"figure": name, **figure} for name, figure in card["figures"].items()]
    views.show(views.Views(page=page, document=lambda: card, rows=lambda: rows), kind, output)
    return 0
