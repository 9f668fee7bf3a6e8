"""`llmviewer calibrate ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import write
from llmviewer.core import data, files
from llmviewer.core.errors import UserError, unknown

if TYPE_CHECKING:
    from llmviewer.calibrate.ledger import PublishedTable
    from llmviewer.reports.page import Page

Name = Annotated[str, typer.Option("--source", help="Score one file of calibrate/ledger/ and list its figures.")]
Record = Annotated[bool, typer.Option("--record", help="Store the current errors as those of this release.")]
Rows = Annotated[bool, typer.Option("--rows", help="List every figure.")]


def command(
    source: Name = "",
    rows: Rows = False,
    record: Record = False,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
) -> int:
    """Score predictions on published, cited end-to-end figures; none of them is fitted."""
    kind = views.check_output(format, output)
    from llmviewer.calibrate import ledger_score

    document = ledger_score.document(ledger_score.score(_asked(source)))
    last = ledger_score.recorded_errors()
    if record:
        if source:
            raise UserError("--record needs the whole ledger; remove --source")
        kept = data.folder(ledger_score.RECORD)
        files.forget_input(kept)
        write(ledger_score.record_text(document), str(kept))

    def page() -> Page:
        from llmviewer.reports import ledger_page

        return ledger_page.page(document, last, rows or bool(source))

    views.show(
        views.Views(page=page, document=lambda: document, rows=lambda: document["rows"]),
        kind,
        output,
    )
    return 0


def _asked(name: str) -> tuple[PublishedTable, ...]:
    from llmviewer.calibrate import ledger

    sources = ledger.load()
    if not name:
        return sources
    known = {source.name: source for source in sources}
    if name not in known:
        raise unknown("source", name, known)
    return (known[name],)
