"""`llmviewer calibrate validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, output, views
from llmviewer.cli import options as opt
from llmviewer.cli.extras import calibration_extra
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.reports.page import Page

Tables = Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Measured tables, CSV or Parquet.")]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware", autocompletion=candidates.chips, help="Chip of every row, overriding the column device."
    ),
]
Profile = Annotated[str, typer.Option("--profile", help="Your profile, searched before the shipped ones.")]
Rows = Annotated[str | None, typer.Option("-o", "--output", help="Write the rows with predictions to this file.")]


def command(
    table: Tables,
    hardware: Hardware = "",
    profile: Profile = "",
    format: opt.Format = "table",  # noqa: A002
    output: Rows = None,
) -> int:
    """Predict measured rows and report errors, bias and coverage by device, kernel and regime.

    Tables are those of docs/calibration.md: kernels, or whole requests.  No row is dropped: what cannot be predicted is
    named and counted.
    """
    views.check_output(format, output, (*map(str, table), profile))
    with calibration_extra():
        from llmviewer.calibrate import judge

        own = profiles.load(Path(profile)) if profile else None
        predictions = judge.predict_tables(table, hardware, own)
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
        views.Views(page=page, document=lambda: document, rows=lambda: document["scores"]),
        format,
        None,
    )


def _safe(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without cells that a spreadsheet would run."""
    from llmviewer.reports.cells import safe_cell

    texts = [name for name, kind in rows.dtypes.items() if kind.kind == "O"]
    return rows.assign(**{str(name): rows[name].map(safe_cell) for name in texts}).rename(columns=safe_cell)


def _of_one_type(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with text in columns that hold values of several types, which Parquet cannot store."""
    mixed = [
        name for name in rows.columns if rows[name].dtype == object and rows[name].dropna().map(type).nunique() > 1
    ]
    return rows.assign(**{name: rows[name].map(str) for name in mixed})


def _write(predictions: list[pd.DataFrame], path: str) -> None:
    """Write the rows of all tables, as Parquet or CSV depending on the file name."""
    import pandas as pd

    rows = predictions[0] if len(predictions) == 1 else pd.concat(predictions, ignore_index=True)
    with output.atomic_file(path) as temporary:
        if path.endswith(".parquet"):
            _of_one_type(rows).to_parquet(temporary)
        else:
            _safe(rows).to_csv(temporary, index=False)
