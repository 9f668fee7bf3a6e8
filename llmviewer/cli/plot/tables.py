"""Tables for `llmviewer plot`: files written by other commands, or the current ledger scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core import arguments, data
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.calibrate.readers.stated import Stated


def table(path: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Rows of a CSV or Parquet file.  Raises UserError if one of `columns` is missing."""
    from llmviewer.calibrate import table_file

    rows = table_file.read(Path(path))
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise UserError(f"'{printable(path)}' has no column {', '.join(missing)}")
    return rows


def is_benchmark(path: str) -> bool:
    """Whether a file is one of a benchmark program, which options of a run complete."""
    from llmviewer.calibrate.readers import files

    if path and not Path(path).exists():
        raise UserError(f"no file {quoted(path)}")
    return files.is_benchmark(Path(path))


def parity_rows(path: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """Measured rows with their predictions: a table that has them, or a file of a benchmark program.

    options: values of the command for what a benchmark does not state.
    """
    from llmviewer.reports.plots import parity

    if not path:
        raise UserError(
            "this plot needs a benchmark's file, or one written by `llmviewer calibrate validate FILE -o FILE`"
        )
    rows = _predicted(path, options) if is_benchmark(path) else table(path)
    if not parity.is_table(rows.columns):
        raise UserError(f"'{printable(path)}' is not a file written by `llmviewer calibrate validate TABLE -o FILE`")
    if parity.frame(rows).empty:
        raise UserError(f"'{printable(path)}' has no row with a prediction")
    return rows


def _predicted(path: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of a benchmark's file with predictions."""
    from llmviewer.calibrate import judge

    own = profiles.load(Path(options["profile"])) if options.get("profile") else None
    try:
        return judge.predict_tables([Path(path)], "", own, _stated(options))[0]
    except UserError as error:
        hint = "" if "--model" not in error.marked else " to `llmviewer calibrate validate FILE -o rows.csv`; plot that"
        raise UserError(f"{error.marked}{hint}") from error


def _stated(options: Mapping[str, Any]) -> Stated:
    """The options of the command that describe a benchmark; one that has its default states nothing."""
    from llmviewer.calibrate.readers.stated import Stated
    from llmviewer.techniques.options import OPTIONS

    given: dict[str, Any] = {}
    for field in fields(Stated):
        default = getattr(OPTIONS.get(field.name), "default", None)
        value = options.get(field.name)
        if value not in ("", None, default):
            whole = isinstance(field.default, int)
            given[field.name] = arguments.whole_number(field.name, arguments.parse_number(value)) if whole else value
    return Stated(**given)


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
