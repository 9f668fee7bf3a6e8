"""`llmviewer calibrate validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.calibrate.stated import with_stated
from llmviewer.core import arguments
from llmviewer.result.columns import parquet_library
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.reports.page import Page

Tables = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help=f"Results of benchmarks ({arguments.BENCHMARKS}), or measured tables."),
]
Profile = Annotated[str, typer.Option("--profile", help="Your profile, searched before the shipped ones.")]
Lent = Annotated[
    bool, typer.Option("--lent", help="Predict kernels with constants of other chips only, as for a chip without rows.")
]
Rows = Annotated[str | None, typer.Option("-o", "--output", help="Write the rows with predictions to this file.")]


@with_stated
def command(
    table: Tables,
    profile: Profile = "",
    lent: Lent = False,
    format: opt.PrintedFormat = "table",  # noqa: A002
    output: Rows = None,
    **words: Any,
) -> int:
    """Predict what was measured: how far off is each figure of a benchmark, each kernel of a table.

    Benchmarks are told apart by content; options state what a file does not.  Tables are those of
    docs/guide/calibration.md (kernels, whole requests, whole systems) and docs/reference/memory.md (what engines log
    about memory at start-up).  No row is dropped: what cannot be predicted is named and counted.
    """
    views.check_output(format, output, (*map(str, table), profile))
    from llmviewer.calibrate import judge
    from llmviewer.calibrate.readers.run import Stated

    own = profiles.load(Path(profile)) if profile else None
    stated = Stated(**words)
    predictions = judge.predict_tables(table, stated.hardware, own, stated, lent=lent)
    document = judge.document(predictions)
    if output is not None:
        _write(predictions, output)
    _show(document, format, ", ".join(path.name for path in table))
    return 0


def _show(document: dict[str, Any], format: str, title: str) -> None:  # noqa: A002
    def page() -> Page:
        from llmviewer.reports import validation_page

        return validation_page.page(document, title)

    views.show(
        views.Views(
            page=page, document=lambda: document, rows=lambda: document["scores"] or document.get("memory", [])
        ),
        format,
        None,
    )


def _of_one_type(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with text in columns that hold values of several types, which Parquet cannot store."""
    mixed = [
        name for name in rows.columns if rows[name].dtype == object and rows[name].dropna().map(type).nunique() > 1
    ]
    return rows.assign(**{name: rows[name].map(str) for name in mixed})


def _write(predictions: list[pd.DataFrame], path: str) -> None:
    """Write the rows of all tables, as Parquet or CSV depending on the file name."""
    import pandas as pd

    from llmviewer.reports.tables import safe_frame

    rows = predictions[0] if len(predictions) == 1 else pd.concat(predictions, ignore_index=True)
    with views.atomic_file(path) as temporary:
        if path.endswith(".parquet"):
            parquet_library()
            _of_one_type(rows).to_parquet(temporary)
        else:
            safe_frame(rows).to_csv(temporary, index=False)
