"""`llmviewer models list`, `llmviewer models show` and `llmviewer models fetch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.help import Listing
from llmviewer.core.errors import UserError, printable
from llmviewer.result import describe
from llmviewer.result.columns import flat

if TYPE_CHECKING:
    from llmviewer.reports.page import Page

app = typer.Typer(cls=Listing, no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_models(format: opt.Format = "", output: opt.Output = None) -> int:  # noqa: A002
    """Lists every model with parameters, architecture, KV cache and context."""
    kind = views.check_output(format, output)
    objects = describe.model_list()

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.models(objects)

    views.show(views.Views(page=page, document=lambda: objects, rows=lambda: objects), kind, output)
    return 0


@app.command("show")
def show_model(
    model: opt.Model,
    dtype: opt.Dtype = "auto",
    ignore_field: opt.IgnoreFields = None,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Shows counted and published parameters, layers, KV cache and config of one model."""
    kind = views.check_output(format, output, (model,))
    card = describe.model_card(model, dtype=dtype, ignored=tuple(ignore_field or ()))

    def page() -> Page:
        from llmviewer.reports import catalog_page

        return catalog_page.model(card)

    rows = [{"field": field, "value": value} for field, value in flat(card).items()]
    views.show(views.Views(page=page, document=lambda: card, rows=lambda: rows), kind, output)
    return 0


@app.command("fetch")
def fetch_model(
    model: str = typer.Argument(metavar="ID", help="Hub id: ORGANISATION/NAME."),
    output: str | None = typer.Option(None, "--output", "-o", metavar="FOLDER", help="Folder for its config.json."),
) -> int:
    """Downloads a model's config.json from the Hugging Face Hub: to the local cache, or to a folder."""
    from llmviewer import models
    from llmviewer.cli.views import print_warnings
    from llmviewer.models import hub

    target = None if output is None else _new_config(output)
    found = hub.fetched_config(model)
    if target is not None:
        beside = found.parent / hub.BESIDE
        found = _copied(found, target)
        if beside.exists():
            _copied(beside, target.parent / hub.BESIDE)
    print(found)  # noqa: T201
    try:
        models.load(str(found))
    except UserError as error:
        print_warnings([error.marked])
    else:
        given = model if target is None else target.parent
        print(f"llmviewer analyze {given} --hardware NAME", file=sys.stderr)  # noqa: T201
    return 0


def _new_config(folder: str) -> Path:
    """The config.json to be written in a folder that is new or has none.  Raises UserError."""
    from llmviewer.cli.folder import target_folder
    from llmviewer.models.card import CONFIG_FILE

    return target_folder(folder, lambda entry: entry.name != CONFIG_FILE) / CONFIG_FILE


def _copied(source: Path, target: Path) -> Path:
    """Write the file to `target`, in a folder that is made if needed; return `target`.  Raises UserError."""
    from llmviewer.cli.views import atomic_file
    from llmviewer.core import data

    content = data.read_text(source, data.MAX_JSON_BYTES)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write '{printable(target.parent)}': {error.strerror or error}") from error
    with atomic_file(str(target)) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return target
