"""Predict tables of any kind and score them in one document, for `calibrate validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import e2e, predict, validate, whole
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.sources import WHOLE_TABLES, is_samples, read
from llmviewer.calibrate.tables import SHAPES
from llmviewer.hardware import specs as chips
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


def predict_tables(paths: Sequence[Path], hardware: str, profile: Profile | None) -> list[pd.DataFrame]:
    """Every table with predictions added; no row is dropped.  Raises UserError for an unknown kind of table.

    Samples of `calibrate run` contain tables of kernels, layers and models.
    """
    if hardware:
        chips.load(hardware)  # raise once here instead of a reason in every row
    options = predict.PredictionOptions(hardware=hardware, profile=profile)
    return [frame for path in paths for frame in _predict_file(path, options)]


def _predict_file(path: Path, options: predict.PredictionOptions) -> Iterator[pd.DataFrame]:
    if not is_samples(path):
        frame = read_table(path)
        yield e2e.predict(frame, options) if e2e.is_request_table(frame.columns) else predict.predict(frame, options)
        return
    source = read(path)
    for _, frame in source.kernels:
        yield predict.predict(frame, options).drop(columns="samples_us", errors="ignore")
    for name in WHOLE_TABLES:
        if name in source.tables:
            yield whole.without_samples(whole.predict(source.tables[name], name, options))
    for name, frame in source.tables.items():
        if name not in (*SHAPES, *WHOLE_TABLES):
            yield whole.without_predictions(frame, f"rows of {name} measure the device, not a kernel of a model")


def document(predictions: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """JSON document with the scores of all tables, and the total over all rows."""
    import pandas as pd

    joined = pd.concat([_with_score_columns(frame) for frame in predictions], ignore_index=True)
    return validate.validate(joined, ("device", "counted_as", "regime"), validate.KERNEL_COLUMNS).document()


def _with_score_columns(frame: pd.DataFrame) -> pd.DataFrame:
    if e2e.is_request_table(frame.columns):
        return frame.rename(columns=e2e.AS_KERNELS).assign(counted_as=frame["preset"], regime=frame["metric"])
    is_kernel = "counted_as" not in frame.columns
    return frame.assign(counted_as=predict.kernel_names(frame)) if is_kernel else frame
