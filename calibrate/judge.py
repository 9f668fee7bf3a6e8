"""Tables of any kind -> answered tables, and one document of scores: what `calibrate validate` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate import predict, validate
from calibrate.fit_tables import read_table
from llmviewer.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def answers(paths: Sequence[Path], hardware: str, own: Profile | None) -> list[pd.DataFrame]:
    """Every table with its predictions, every row kept.  Raises UserError for a table of no known kind."""
    return [_answered(read_table(path), hardware, own) for path in paths]


def _answered(frame: pd.DataFrame, hardware: str, own: Profile | None) -> pd.DataFrame:
    return predict.predict(frame, predict.Asked(hardware=hardware, own=own))


def document(answered: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Scores of all tables in one list, the total over all rows."""
    import pandas as pd

    joined = pd.concat([_keyed(frame) for frame in answered], ignore_index=True)
    return validate.validation(joined, ("device", "counted_as", "regime"), validate.KERNELS).document()


def _keyed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(counted_as=predict.kernel_of(frame))
