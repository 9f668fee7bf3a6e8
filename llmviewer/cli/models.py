"""`llmviewer models list` and `llmviewer models show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.result import catalog

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_models(format: opt.Format = "table", output: opt.Output = None) -> int:  # noqa: A002
    """Lists every model with parameters, architecture, KV cache and context."""
    views.check_output(format, output)
    objects = catalog.model_list()

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.models(objects)

    views.show(views.Views(page=page, document=lambda: objects, rows=lambda: objects), format, output)
    return 0


@app.command("show")
def show_model(
    model: opt.Model,
    dtype: opt.Dtype = "auto",
    ignore_field: opt.IgnoreFields = None,
    format: opt.Format = "table",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Shows counted and published parameters, layers, KV cache and config of one model."""
    views.check_output(format, output, (model,))
    card = catalog.model_card(model, dtype=dtype, ignored=tuple(ignore_field or ()))

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.model(card)

    rows = [{"field": field, "value": value} for field, value in views.flat(card).items()]
    views.show(views.Views(page=page, document=lambda: card, rows=lambda: rows), format, output)
    return 0
