"""`llmviewer techniques list` and `llmviewer techniques show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.cli.help import Listing
from llmviewer.core.errors import unknown
from llmviewer.result.describe import technique_card, technique_list
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

app = typer.Typer(cls=Listing, no_args_is_help=True, rich_markup_mode=None)


def _row(card: dict[str, Any]) -> dict[str, Any]:
    """The card as a row of a table of all techniques."""
    texts = {key: "; ".join(f"{name}: {text}" for name, text in card[key].items()) for key in ("parameters", "methods")}
    return {**card, **texts}


@app.command("list")
def list_techniques(format: opt.Format = "", output: opt.Output = None) -> int:  # noqa: A002
    """Lists every technique in the order of application; those without an option come last."""
    kind = views.check_output(format, output)
    cards = technique_list()

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.listed(cards)

    views.show(
        views.Views(page=page, document=lambda: cards, rows=lambda: [_row(card) for card in cards]), kind, output
    )
    return 0


@app.command("show")
def show_technique(
    name: Annotated[str, typer.Argument(autocompletion=candidates.techniques, help="A technique's name or option.")],
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Shows formula, source and an example command of one technique."""
    kind = views.check_output(format, output)
    key = name.lower().lstrip("-").replace("-", "_")
    if key not in TECHNIQUES and key not in WITHOUT_OPTION:
        raise unknown("technique", name, (*TECHNIQUES, *WITHOUT_OPTION), hint="see `llmviewer techniques list`")
    entry = technique_card(key)

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.shown(entry)

    views.show(views.Views(page=page, document=lambda: entry, rows=lambda: [_row(entry)]), kind, output)
    return 0
