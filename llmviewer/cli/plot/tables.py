"""Tables for `llmviewer plot`: files written by other commands, or the current ledger scores."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable

if TYPE_CHECKING:
    import pandas as pd


def table(path: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Rows of a CSV or Parquet file.  Raises UserError if one of `columns` is missing."""
    from llmviewer.calibrate import table_file

    rows = table_file.read(Path(path))
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise UserError(f"'{printable(path)}' has no column {', '.join(missing)}")
    return rows


def parity_rows(path: str) -> pd.DataFrame:
    """Measured rows with their predictions."""
    from llmviewer.reports.plots import parity

    if not path:
        raise UserError("this plot needs a file written by `llmviewer calibrate validate TABLE -o FILE`")
    rows = table(path)
    if not parity.is_table(rows.columns):
        raise UserError(f"'{printable(path)}' is not a file written by `llmviewer calibrate validate TABLE -o FILE`")
    if parity.frame(rows).empty:
        raise UserError(f"'{printable(path)}' has no row with a prediction")
    return rows


def ledger_rows(path: str) -> pd.DataFrame:
    """Rows of the ledger, from a file or scored now."""
    import pandas as pd

    from llmviewer.reports.plots import ledger as picture

    if path:
        rows = table(path, ("source", "metric", "published", "predicted", "low80", "high80"))
    else:
        if not data.folder("calibrate/ledger").is_dir():
            raise UserError(
                "the ledger is not installed; give a file written by `llmviewer calibrate ledger --format csv`"
            )
        from llmviewer.calibrate import ledger, ledger_score

        rows = pd.DataFrame(ledger_score.document(ledger_score.score(ledger.load()))["rows"])
    if picture.frame(rows).empty:
        raise UserError("no row has a prediction")
    return rows
